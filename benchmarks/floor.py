"""Speed of `rllm train guess` over the speed of a bare loop: same game, model, batch, epochs and minibatches.

python benchmarks/floor.py            # 40 steps of each, alternately, two lines of metrics

The ratio of processor seconds is also right on a busy machine, where wall time depends on the other processes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from rllm.config.compose import Composed, compose
from rllm.config.layers import layers_from_overrides
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.plugins.registry import Registry
from rllm_local.tiny import build_model, build_tokenizer

NUMBERS = 16
MAX_GUESSES = 5
ANSWERS = ("lower", "higher", "correct", "?")


class Seconds(NamedTuple):
    """Wall time, and processor time of all threads of this process."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> Seconds:
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: Seconds) -> Seconds:
        return Seconds(self.wall - start.wall, self.processor - start.processor)


@dataclass(frozen=True)
class Recipe:
    """The values of the framework's recipe that this loop needs."""

    games_per_number: int
    steps: int
    epochs: int
    minibatches: int
    learning_rate: float
    betas: tuple[float, float]
    max_grad_norm: float
    eps_clip: float
    eps_clip_high: float
    entropy_coeff: float
    entropy_decay_steps: int


@dataclass(frozen=True)
class Games:
    """One batch of finished games: all rows have the same shape, and `live` marks the counted guesses."""

    rows: Tensor
    guesses: Tensor
    logprobs: Tensor
    live: Tensor
    positions: Tensor
    rewards: Tensor
    solved: Tensor


class GuessTheNumber:
    """The game over token ids: one sampled token per guess, every other token comes from the environment."""

    def __init__(self) -> None:
        tokenizer = build_tokenizer()
        texts = ["guess", *(f"<end>{word}" for word in ANSWERS)]
        prompt, *responses = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        self.prompt, self.responses = torch.tensor(prompt), torch.tensor(responses)
        self.values = torch.full((len(tokenizer),), -1)
        for token, index in tokenizer.get_vocab().items():
            if token.isdecimal():
                self.values[index] = int(token)

    @torch.no_grad()
    def play(self, model: LlamaForCausalLM, hidden: Tensor, generator: torch.Generator) -> Games:
        """Play one game per entry of `hidden`, all at once, at temperature 1; finished games continue, uncounted."""
        count = len(hidden)
        cache = DynamicCache(config=model.config)
        fresh = self.prompt.repeat(count, 1)
        pieces, guesses, logprobs, live, positions = [fresh], [], [], [], []
        playing = torch.ones(count, dtype=torch.bool)
        rewards = torch.zeros(count)
        length = fresh.shape[1]
        for turn in range(MAX_GUESSES):
            last = model.model(input_ids=fresh, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
            distribution = torch.log_softmax(model.lm_head(last), dim=-1)
            guess = torch.multinomial(distribution.exp(), 1, generator=generator)
            guesses.append(guess)
            logprobs.append(distribution.gather(1, guess))
            live.append(playing[:, None])
            positions.append(length - 1)
            value = self.values[guess[:, 0]]
            hit = playing & (value == hidden)
            rewards[hit] = 1.0 - 0.1 * turn
            playing = playing & ~hit
            answer = torch.where(value > hidden, ANSWERS.index("lower"), ANSWERS.index("higher"))
            answer = torch.where(value == hidden, ANSWERS.index("correct"), answer)
            answer = torch.where(value < 0, ANSWERS.index("?"), answer)
            fresh = torch.cat([guess, self.responses[answer]], dim=1)
            pieces.append(fresh)
            length += fresh.shape[1]
        return Games(
            rows=torch.cat(pieces[:-1], dim=1),
            guesses=torch.cat(guesses, dim=1),
            logprobs=torch.cat(logprobs, dim=1),
            live=torch.cat(live, dim=1),
            positions=torch.tensor(positions),
            rewards=rewards,
            solved=~playing,
        )


def policy_loss(
    model: LlamaForCausalLM, games: Games, advantages: Tensor, chosen: Tensor, recipe: Recipe, entropy_coeff: float
) -> Tensor:
    """Clipped surrogate less the entropy bonus, summed over the guesses of a game, averaged over games."""
    states = model.model(input_ids=games.rows[chosen], use_cache=False).last_hidden_state[:, games.positions]
    row, turn = games.live[chosen].nonzero(as_tuple=True)
    distribution = torch.log_softmax(model.lm_head(states[row, turn]), dim=-1)
    game = chosen[row]
    logprobs = distribution.gather(1, games.guesses[game, turn][:, None])[:, 0]
    ratio = (logprobs - games.logprobs[game, turn]).exp()
    clipped = ratio.clamp(1.0 - recipe.eps_clip, 1.0 + recipe.eps_clip_high)
    loss = torch.maximum(-ratio * advantages[game], -clipped * advantages[game])
    if entropy_coeff:
        loss = loss + entropy_coeff * (distribution.exp() * distribution).sum(dim=-1)
    return loss.sum() / len(chosen)


def train(recipe: Recipe, seed: int, on_step: Callable[[int], None] | None = None) -> tuple[Seconds, float]:
    """Train from scratch; returns (seconds of the steps only, share of games solved at the end)."""
    game = GuessTheNumber()
    model = build_model(len(game.values), seed).eval()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=0.0)
    hidden = torch.arange(NUMBERS).repeat_interleave(recipe.games_per_number)
    started = Seconds.now()
    for step in range(recipe.steps):
        entropy_coeff = recipe.entropy_coeff * max(0.0, 1 - step / recipe.entropy_decay_steps)
        games = game.play(model, hidden, generator)
        groups = games.rewards.view(NUMBERS, -1)
        advantages = (groups - groups.mean(dim=1, keepdim=True)).reshape(-1)
        for _ in range(recipe.epochs):
            for chosen in torch.randperm(len(hidden), generator=generator).chunk(recipe.minibatches):
                optimizer.zero_grad()
                policy_loss(model, games, advantages, chosen, recipe, entropy_coeff).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
                optimizer.step()
        if on_step is not None:
            on_step(step)
    seconds = Seconds.now().since(started)
    return seconds, float(game.play(model, hidden, generator).solved.float().mean())


class StepClock(Observer):
    """Seconds from the start of the first step to the end of the last."""

    def on_batch_start(self, step: TrainStep) -> None:
        if step.global_step == 0:
            self.started = Seconds.now()

    def on_batch_end(self, step: TrainStep) -> None:
        self.seconds = Seconds.now().since(self.started)


def framework_seconds(composed: Composed, registry: Registry) -> Seconds:
    """Train as a user does (metrics, trackers, checkpoints at the end) and time the steps."""
    plan = make_plan(composed, registry)
    clock = StepClock()
    directory = RunDirectory.open(composed.config.rllm.trainer, overwrite=True)
    tasks = load_tasks(plan, "train")
    TrainingLoop(plan, directory, train_tasks=tasks, val_tasks=(), observers=[clock]).fit()
    directory.close()
    return clock.seconds


def recipe_of(composed: Composed) -> Recipe:
    """The framework's own recipe, for the bare loop."""
    rllm, training = composed.config.rllm, composed.tree["training"]
    return Recipe(
        games_per_number=rllm.rollout.n,
        steps=rllm.trainer.total_batches,
        epochs=training["num_epochs"],
        minibatches=training["num_minibatches"],
        learning_rate=training["learning_rate"],
        betas=(training["beta1"], training["beta2"]),
        max_grad_norm=training["max_grad_norm"],
        eps_clip=rllm.algorithm.eps_clip,
        eps_clip_high=rllm.algorithm.eps_clip_high or rllm.algorithm.eps_clip,
        entropy_coeff=rllm.algorithm.entropy.coeff,
        entropy_decay_steps=rllm.algorithm.entropy.decay_steps,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="training steps of each (default: 40)")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of each, alternately (default: 3)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    registry = Registry.load()
    bare, ours = list[Seconds](), list[Seconds]()
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(arguments.repeats):
            words = [
                "rllm.env.name=guess",
                f"rllm.trainer.total_batches={arguments.steps}",
                f"rllm.trainer.output_dir={Path(directory)}",
                "rllm.trainer.val_before_train=false",
                "rllm.trainer.logger=[]",
            ]
            composed = compose(registry, layers_from_overrides(words))
            bare.append(train(recipe_of(composed), seed=0)[0])
            ours.append(framework_seconds(composed, registry))
    for index, unit in enumerate(Seconds._fields):
        floors, mine = ([each[index] / arguments.steps for each in side] for side in (bare, ours))
        ratios = [floor / own for floor, own in zip(floors, mine, strict=True)]
        print(
            f"floor: {1e3 * min(floors):.0f} ms of {unit} time per step bare, {1e3 * min(mine):.0f} ms rllm train "
            f"guess, ratio {median(ratios):.2f} (median of {len(ratios)} repeats: "
            f"{', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))}; target 0.75)"
        )


if __name__ == "__main__":
    main()
