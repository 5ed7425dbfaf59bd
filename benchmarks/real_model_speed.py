"""The backend `local` on a pretrained model, next to `generate` of transformers and a hand-written update.

python benchmarks/real_model_speed.py         # five repeats of each, alternately, in one process; about 15 minutes

It measures decoding of 64 rollouts of 48 tokens and of 8 rollouts of one prompt of 512 tokens, an update on each, and
memory. A ratio above 1 means that ours is faster. Nothing ends a response early, so both sides compute equally many
tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests/tools"))

import numpy as np
import smollm2
import torch
from measuring import keep_freed_memory, peak_megabytes
from numpy.typing import NDArray
from torch import Tensor

from rllm_core.algorithms.options import PpoParams
from rllm_core.contracts.backend import UpdatePlan
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.loss import LossPlugin
from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.types import Trajectory, TrajectoryGroup
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.updates.losses import ppo
from rllm_local.engine import LocalEngine
from rllm_local.model import LoadedModel, load_model
from rllm_local.settings import ModelSection, TrainingSection
from rllm_local.update import Updater
from rllm_local.vocabulary import chunked_outputs


def sample_by_hand(model: Any, prompts: Sequence[Sequence[int]], count: int) -> Tensor:
    """(n_prompt, count) tokens drawn at temperature 1, with prompts padded on the left. No token ends a response."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    real = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    drawn: Tensor = model.generate(
        ids,
        attention_mask=real,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=count,
        min_new_tokens=count,
        pad_token_id=0,
    )
    return drawn[:, width:]


class HandWrittenUpdate:
    """One step of PPO: rows padded to the longest, micro-batches of 16 rows, logits of responses only, AdamW."""

    def __init__(self, model: Any, settings: TrainingSection) -> None:
        self._model = model
        self._settings = settings
        self._optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )

    def __call__(self, batch: TokenBatch) -> float:
        """Make a step on a batch that has `advantages` and `old_logprobs`, and return the loss."""
        self._optimizer.zero_grad()
        total = float(batch.loss_mask.sum())
        loss = 0.0
        for rows in np.array_split(np.arange(batch.n_rows), max(1, batch.n_rows // 16)):
            part = self._loss(batch, rows) / total
            part.backward()
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_grad_norm)
        self._optimizer.step()
        return loss

    def _loss(self, batch: TokenBatch, rows: Any) -> Tensor:
        width = int(batch.row_lengths[rows].max())
        columns = (batch.tokens.astype(np.int64), batch.loss_mask, batch.old_logprobs, batch.advantages)
        ids, mask, old, advantages = (self._padded(batch, rows, width, values) for values in columns)
        mask, old, advantages = mask[:, 1:], old[:, 1:], advantages[:, 1:]
        states = self._model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state[mask]
        distribution = torch.log_softmax(self._model.lm_head(states).float(), dim=-1)
        logprobs = distribution.gather(1, ids[:, 1:][mask][:, None])[:, 0]
        with torch.no_grad():
            # Every trainer shows the entropy.
            self.entropy = -(distribution.exp() * distribution).sum(dim=-1).mean()
        ratio = (logprobs - old[mask]).exp()
        clipped = ratio.clamp(0.8, 1.2)
        return torch.maximum(-ratio * advantages[mask], -clipped * advantages[mask]).sum()

    def _padded(self, batch: TokenBatch, rows: Any, width: int, values: Any) -> Tensor:
        out = torch.zeros((len(rows), width), dtype=torch.from_numpy(values[:0]).dtype)
        for index, row in enumerate(rows):
            start, end = batch.row_offsets[row : row + 2]
            out[index, : end - start] = torch.from_numpy(values[start:end])
        return out


GROUPS, SIBLINGS, RESPONSE, LONG_PROMPT = 8, 8, 48, 512


@dataclass(frozen=True)
class Compared:
    """Seconds of each repeat, ours and theirs: (wall, CPU)."""

    ours: list[tuple[float, float]]
    theirs: list[tuple[float, float]]

    def line(self, what: str, tokens: int, other: str, target: float) -> str:
        wall, cpu = (
            sorted(them[kind] / us[kind] for us, them in zip(self.ours, self.theirs, strict=True)) for kind in (0, 1)
        )
        us, them = (tokens / statistics.median(seconds for seconds, _ in times) for times in (self.ours, self.theirs))
        return (
            f"{what}: {us:.1f} tokens/s, {other} {them:.1f}, ratio {statistics.median(wall):.2f} "
            f"({wall[0]:.2f} to {wall[-1]:.2f}), of processor time {statistics.median(cpu):.2f} "
            f"({cpu[0]:.2f} to {cpu[-1]:.2f}); target {target}"
        )


def time_alternately(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> Compared:
    """Time both, after one call of each that is not counted."""
    compared = Compared([], [])
    for number in range(repeats + 1):
        for call, times in ((ours, compared.ours), (theirs, compared.theirs)):
            start, used = time.perf_counter(), time.process_time()
            call()
            if number:
                times.append((time.perf_counter() - start, time.process_time() - used))
    return compared


def sums(loaded: LoadedModel) -> list[list[int]]:
    """Return the prompts of 64 rollouts: 8 questions, each 8 times."""
    questions = [f"What is {7 * number + 3} + {5 * number + 4}?" for number in range(GROUPS)]
    return [prompt_ids(loaded, question) for question in questions for _ in range(SIBLINGS)]


def long_prompt(loaded: LoadedModel) -> list[list[int]]:
    text = "Read these numbers: " + " ".join(str(number % 89) for number in range(LONG_PROMPT))
    ids = prompt_ids(loaded, text)
    return [ids[: LONG_PROMPT - 5] + ids[-5:]] * SIBLINGS


def prompt_ids(loaded: LoadedModel, question: str) -> list[int]:
    messages = [{"role": "user", "content": question}]
    ids: list[int] = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids


class Sampler:
    """The engine of the backend, whose caches are emptied before every call, as after an update."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._executor = ThreadPoolExecutor(1)
        self._version = 0
        self._engine = LocalEngine(
            loaded.model,
            TemplateRenderer(loaded.tokenizer, ()),
            self._executor,
            max_context=2048,
            max_concurrency=64,
            kv_cache_bytes=2 << 30,
        )

    def __call__(self, prompts: list[list[int]]) -> list[Completion]:
        self._version += 1
        self._engine.sync_weights(self._version)
        return asyncio.run(self._all(prompts))

    async def _all(self, prompts: list[list[int]]) -> list[Completion]:
        return await asyncio.gather(*(self._one(prompt, number) for number, prompt in enumerate(prompts)))

    async def _one(self, prompt: list[int], number: int) -> Completion:
        sampling = SamplingParams(max_tokens=RESPONSE, temperature=1.0, seed=number)
        try:
            return await self._engine.generate(prompt, sampling, session=str(number))
        finally:
            await self._engine.end_session(str(number))


def batch_of(prompts: list[list[int]], responses: list[Completion]) -> TokenBatch:
    groups = []
    for start in range(0, len(prompts), SIBLINGS):
        group = TrajectoryGroup(group_id=f"{start}:agent", trajectories=[])
        for prompt, response in zip(
            prompts[start : start + SIBLINGS], responses[start : start + SIBLINGS], strict=True
        ):
            trajectory = Trajectory("agent", reward=0.0)
            trajectory.add_step(prompt, response.token_ids, response.logprobs)
            group.trajectories.append(trajectory)
        groups.append(group)
    batch = build_batch(groups)
    advantages: NDArray[np.float32] = np.where(np.arange(batch.n_rows) % 2, 1.0, -1.0).astype(np.float32)
    return batch.with_columns(
        advantages=np.repeat(advantages, batch.row_lengths) * batch.loss_mask, old_logprobs=batch.sampling_logprobs
    )


def plan() -> UpdatePlan:
    plugin: LossPlugin[Any] = LossPlugin(name="ppo", summary="", load_params=lambda: PpoParams, load=lambda: ppo)
    registered = Registered(plugin=plugin, distribution="benchmarks", version="0")
    chosen = PluginChoice(registered=registered, params=PpoParams())
    return UpdatePlan(losses={"agent": chosen}, global_step=0, aggregation="token-mean", entropy_coeff=0.0, seed=0)


def updater(loaded: LoadedModel, settings: TrainingSection) -> Updater:
    return Updater(loaded.model, settings, total_steps=1000, temperature=1.0, max_response_length=RESPONSE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="repeats of ours and theirs, alternately (default: 5)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default: 2)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    loaded = load_model(ModelSection(name=str(smollm2.exported())), seed=0)
    sampler = Sampler(loaded)
    for what, prompts, target in (
        ("64 rollouts of 48 tokens", sums(loaded), 1.0),
        ("8 rollouts of a prompt of 512 tokens", long_prompt(loaded), 1.2),
    ):
        times = time_alternately(
            lambda prompts=prompts: sampler(prompts),
            lambda prompts=prompts: sample_by_hand(loaded.model, prompts, RESPONSE),
            arguments.repeats,
        )
        print(times.line(what, len(prompts) * RESPONSE, "generate", target), flush=True)
    settings = TrainingSection(learning_rate=1e-9)
    ours, theirs = updater(loaded, settings), HandWrittenUpdate(loaded.model, settings)
    for what, prompts in (
        ("update on 8 rollouts of a prompt of 512 tokens", long_prompt(loaded)),
        ("update on 64 rollouts", sums(loaded)),
    ):
        batch = batch_of(prompts, sampler(prompts))
        times = time_alternately(
            lambda batch=batch: ours.update(batch, plan()), lambda batch=batch: theirs(batch), arguments.repeats
        )
        print(times.line(what, int(batch.loss_mask.sum()), "hand-written", 0.95), flush=True)
    print(memory_line("memory of an update", lambda: ours.update(batch, plan()), lambda: theirs(batch)))
    print(vocabulary_memory(loaded.model.get_output_embeddings()))


def memory_line(what: str, ours: Callable[[], object], theirs: Callable[[], object]) -> str:
    us, them = (peak_megabytes(call) for call in (ours, theirs))
    return f"{what}: not measured here" if us is None or them is None else f"{what}: {us:.0f} MB, plain {them:.0f} MB"


def vocabulary_memory(head: torch.nn.Linear) -> str:
    """Peak memory of log-probs, entropies and their gradients, in chunks and with all logits at once."""
    tokens = 2000
    hidden = torch.randn(tokens, head.in_features, requires_grad=True)
    targets = torch.zeros(tokens, dtype=torch.int64)

    def ours() -> None:
        outputs = chunked_outputs(head, hidden, targets, torch.arange(tokens), 1.0)
        torch.autograd.grad(outputs.logprobs.sum(), [hidden, head.weight])

    def plain() -> None:
        distribution = torch.log_softmax(head(hidden), dim=-1)
        with torch.no_grad():
            (distribution.exp() * distribution).sum(dim=-1)
        torch.autograd.grad(distribution.gather(1, targets[:, None]).sum(), [hidden, head.weight])

    return memory_line(f"log-probs of {tokens} sampled tokens of {head.out_features} possible ones", ours, plain)


if __name__ == "__main__":
    main()
