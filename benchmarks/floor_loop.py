"""The speed floor: a hand-written loop, no framework, that trains a tiny Llama to play guess the number."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from rllm_local.tiny import SPECIAL_TOKENS, build_tokenizer

NUMBERS = 16
MAX_GUESSES = 5
ANSWERS = ("lower", "higher", "correct", "?")
EVALUATION_GAMES_PER_NUMBER = 16
OnStep = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class FloorRecipe:
    """Every knob of the model, the rollout and the optimiser."""

    games_per_number: int = 16
    steps: int = 340
    epochs: int = 2
    minibatches: int = 4
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-3
    warmup_steps: int = 5
    adam_betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    eps_clip: float = 0.2
    eps_clip_high: float = 0.3
    normalise_by_std: bool = False
    token_mean: bool = False
    entropy_coefficient: float = 0.03
    final_entropy_coefficient: float = 0.0
    entropy_decay_step: int = 300
    hidden_layers: int = 1
    initializer_range: float = 0.12


@dataclass(frozen=True)
class FloorResult:
    """How fast the training ran and how well the trained model plays; an unsolved game counts five guesses."""

    steps: int
    seconds: float
    steps_per_second: float
    solved: float
    reward: float
    mean_guesses: float


@dataclass(frozen=True)
class Games:
    """One batch of finished games: all rows have the same shape, `live` marks the guesses that were made."""

    rows: Tensor
    guesses: Tensor
    log_probs: Tensor
    live: Tensor
    positions: Tensor
    rewards: Tensor
    solved: Tensor
    guess_counts: Tensor


class GuessTheNumber:
    """The game over token ids: one sampled token per guess, every other token comes from the environment."""

    def __init__(self) -> None:
        tokenizer = build_tokenizer()
        texts = ["<user>guess<assistant>", *(f"<end><user>{word}<assistant>" for word in ANSWERS)]
        prompt, *replies = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
        self.prompt, self.replies = torch.tensor(prompt), torch.tensor(replies)
        self.vocabulary_size = len(tokenizer)
        self.values = torch.full((self.vocabulary_size,), -1)
        for token, index in tokenizer.get_vocab().items():
            if token.isdecimal():
                self.values[index] = int(token)

    @torch.no_grad()
    def play(self, model: LlamaForCausalLM, hidden: Tensor, generator: torch.Generator) -> Games:
        """Play one game per entry of `hidden`, all at once and at temperature 1; finished games play on unscored."""
        count, length = len(hidden), len(self.prompt)
        cache, fresh = DynamicCache(config=model.config), self.prompt.repeat(len(hidden), 1)
        pieces, guesses, log_probs, live, positions = [fresh], [], [], [], []
        playing = torch.ones(count, dtype=torch.bool)
        rewards, guess_counts = torch.zeros(count), torch.full((count,), float(MAX_GUESSES))
        for turn in range(MAX_GUESSES):
            last_hidden = model.model(input_ids=fresh, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
            distribution = torch.log_softmax(model.lm_head(last_hidden), dim=-1)
            guesses.append(guess := torch.multinomial(distribution.exp(), 1, generator=generator))
            log_probs.append(distribution.gather(1, guess))
            live.append(playing[:, None])
            positions.append(length - 1)
            value = self.values[guess[:, 0]]
            hit = playing & (value == hidden)
            rewards[hit], guess_counts[hit] = 1.0 - 0.1 * turn, turn + 1.0
            playing = playing & ~hit
            answer = torch.where(value > hidden, ANSWERS.index("lower"), ANSWERS.index("higher"))
            answer = torch.where(value == hidden, ANSWERS.index("correct"), answer)
            answer = torch.where(value < 0, ANSWERS.index("?"), answer)
            fresh = torch.cat([guess, self.replies[answer]], dim=1)
            pieces.append(fresh)
            length += fresh.shape[1]
        rows = torch.cat(pieces, 1)[:, : positions[-1] + 1]
        return Games(
            rows, torch.cat(guesses, 1), torch.cat(log_probs, 1), torch.cat(live, 1),
            torch.tensor(positions), rewards, ~playing, guess_counts,
        )  # fmt: skip


def build_policy(recipe: FloorRecipe, vocabulary_size: int, seed: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocabulary_size, hidden_size=64, intermediate_size=128, num_hidden_layers=recipe.hidden_layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=None, eos_token_id=SPECIAL_TOKENS.index("<end>"),
        initializer_range=recipe.initializer_range, attn_implementation="sdpa",
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def group_advantages(recipe: FloorRecipe, rewards: Tensor) -> Tensor:
    groups = rewards.view(NUMBERS, recipe.games_per_number)
    scale = groups.std(dim=1, keepdim=True) + 1e-4 if recipe.normalise_by_std else 1.0
    return ((groups - groups.mean(dim=1, keepdim=True)) / scale).reshape(-1)


def policy_loss(
    model: LlamaForCausalLM, games: Games, advantages: Tensor, chosen: Tensor, recipe: FloorRecipe, entropy: float
) -> Tensor:  # fmt: skip
    """PPO-clip loss less the entropy bonus over the sampled tokens of the chosen games."""
    states = model.model(input_ids=games.rows[chosen], use_cache=False).last_hidden_state[:, games.positions]
    row, turn = games.live[chosen].nonzero(as_tuple=True)
    distribution = torch.log_softmax(model.lm_head(states[row, turn]), dim=-1)
    game = chosen[row]
    log_probs = distribution.gather(1, games.guesses[game, turn][:, None])[:, 0]
    ratio = (log_probs - games.log_probs[game, turn]).exp()
    clipped = ratio.clamp(1.0 - recipe.eps_clip, 1.0 + recipe.eps_clip_high)
    loss = -torch.min(ratio * advantages[game], clipped * advantages[game])
    if entropy > 0.0:
        loss = loss + entropy * (distribution.exp() * distribution).sum(dim=-1)
    return loss.mean() if recipe.token_mean else loss.sum() / len(chosen)


def train(recipe: FloorRecipe, seed: int, on_step: OnStep | None = None) -> FloorResult:
    """Train one model from scratch; `seconds` covers the steps only, not the imports or the final evaluation."""
    game = GuessTheNumber()
    model = build_policy(recipe, game.vocabulary_size, seed)
    generator = torch.Generator().manual_seed(seed + 1000)
    optimizer = torch.optim.AdamW(model.parameters(), betas=recipe.adam_betas, weight_decay=0.0, fused=True)
    hidden = torch.arange(NUMBERS).repeat_interleave(recipe.games_per_number)
    started = time.perf_counter()
    for step in range(recipe.steps):
        warm, faded = min(1.0, (step + 1) / max(1, recipe.warmup_steps)), min(1.0, step / recipe.entropy_decay_step)
        rate = recipe.learning_rate + (recipe.final_learning_rate - recipe.learning_rate) * step / recipe.steps
        optimizer.param_groups[0]["lr"] = warm * rate
        entropy = (1.0 - faded) * recipe.entropy_coefficient + faded * recipe.final_entropy_coefficient
        began = time.perf_counter()
        games = game.play(model, hidden, generator)
        rollout_seconds = time.perf_counter() - began
        advantages = group_advantages(recipe, games.rewards)
        for _ in range(recipe.epochs):
            for chosen in torch.randperm(len(hidden), generator=generator).chunk(recipe.minibatches):
                optimizer.zero_grad()
                policy_loss(model, games, advantages, chosen, recipe, entropy).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
                optimizer.step()
        if on_step is not None:
            scores = {"solved": games.solved.float().mean().item(), "reward": games.rewards.mean().item()}
            on_step(step, {**scores, "rollout_seconds": rollout_seconds})
    seconds = time.perf_counter() - started
    evaluated = torch.arange(NUMBERS).repeat_interleave(EVALUATION_GAMES_PER_NUMBER)
    final = game.play(model, evaluated, generator.manual_seed(seed + 5000))
    return FloorResult(
        recipe.steps, seconds, recipe.steps / seconds, final.solved.float().mean().item(),
        final.rewards.mean().item(), final.guess_counts.mean().item(),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=FloorRecipe.steps)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(train(replace(FloorRecipe(), steps=arguments.steps), arguments.seed))


if __name__ == "__main__":
    main()
