"""The check of the sampler's weights: faults that it finds, false alarms, and its CPU time.

python benchmarks/weight_check.py            # all tables, about 15 minutes
python benchmarks/weight_check.py faults     # eight faults in hosted engines, and five in the weight sync of `local`
python benchmarks/weight_check.py alarms     # 1,000 correct syncs, with samplers that sum in other types and orders
python benchmarks/weight_check.py limits     # differences of log-probs with equal weights, as shares of the limit
python benchmarks/weight_check.py cost       # CPU time of a check, as a share of the training between two checks
python benchmarks/weight_check.py tinker     # false alarms and CPU time with a Tinker server in this process

In `alarms` and `limits` the sampler decodes token by token with a cache, and the trainer computes whole rows. Digests
are not compared, so that only log-probs decide.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import io
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests/tools"))

import numpy as np
import smollm2
import torch
from local_models import random_batch
from tinker_in_process import tiny_server
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from weight_faults import HOSTED, PLAN, RUN, SENT, ExpectedError, faulty_copies, make_check, make_context, run_steps

from rllm.builtin.weight_check.observer import TOKENS_PER_PROBE_TOKEN, WeightCheck, make_probe
from rllm.builtin.weight_check.verdicts import Check, Judge, Scores, rounding_limit
from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm.planning.planner import make_plan
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.contracts.weight_comparison import Probe, WeightComparison
from rllm_core.errors import BackendError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_local.backend import LocalBackend
from rllm_local.forward import Row, last_logits
from rllm_local.kv_cache import PageCache
from rllm_local.master_weights import cast_weights
from rllm_local.pages import page_count
from rllm_local.samplers import checkpoint_weights
from rllm_local.scoring import score_to_train
from rllm_local.trainer import load_trainer
from rllm_tinker.backend import TinkerBackend
from rllm_tinker.settings import TinkerConfig

DTYPES = ("float32", "bfloat16", "float16")


@torch.inference_mode()
def decode_scores(model: Any, probe: Probe) -> Scores:
    """Return the scores of a probe, (n_score,), one token at a time, as in a response."""
    rows, length = probe.tokens.shape
    count = page_count(length)
    cache = PageCache(model.config, rows * count)
    scores = []
    for place in range(probe.prompt, length):
        cached = 0 if place == probe.prompt else place - 1
        fresh = [
            Row(
                range(1 + row * count, 1 + row * count + page_count(place)),
                cached,
                tokens[cached:place],
                SamplingParams(max_tokens=1),
                0,
            )
            for row, tokens in enumerate(probe.tokens)
        ]
        logprobs = torch.log_softmax(last_logits(model, cache, fresh).float(), dim=-1)
        scores.append(logprobs[torch.arange(rows), torch.from_numpy(probe.tokens[:, place].astype(np.int64))])
    return torch.stack(scores, dim=1).flatten().numpy()


# Faults


def find_fault(context: RunContext, expected: ExpectedError) -> str:
    """Return ``named`` if the expected error stops the run at the sync of the fault."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            run_steps(LocalBackend(), context, make_check())
    except BackendError as error:
        at_its_sync = error.message.startswith("After weight sync 2, ")
        return (
            "named"
            if (error.code, at_its_sync) == (expected.code, True) and expected.text in error.message
            else (f"wrong: {error.message}")
        )
    return "missed"


def print_faults() -> None:
    for name, (fault, expected) in SENT.items():
        with faulty_copies(fault):
            print(f"sync of local  {name:30} {find_fault(make_context(versions=2, **expected.sections), expected)}")
    for name, (make, expected) in HOSTED.items():
        print(f"hosted engine  {name:30} {find_fault(make_context(engine=make(), **expected.sections), expected)}")


# Alarms


@dataclass(frozen=True)
class Case:
    """Correct syncs from a trainer to a sampler, which may compute in a different type."""

    trained: str
    sampled: str
    learning_rate: float
    lora: bool = False


CASES = [
    *(
        Case(trained, sampled, rate)
        for rate in (1e-6, 1e-5, 1e-3)
        for trained, sampled in (
            ("float32", "float32"),
            ("float32", "bfloat16"),
            ("float32", "float16"),
            ("bfloat16", "bfloat16"),
        )
    ),
    *(
        Case(trained, sampled, rate, lora=True)
        for rate in (1e-5, 1e-3)
        for trained, sampled in (
            ("float32", "float32"),
            ("float32", "float16"),
            ("bfloat16", "bfloat16"),
            ("float32", "bfloat16"),
        )
    ),
]


class Decoding(WeightComparison):
    """A trainer, and a sampler that decodes with a copy of its weights."""

    def __init__(self, case: Case, context: RunContext) -> None:
        loaded, self.trainer = load_trainer(context)
        self.loaded = loaded
        self._copy = self._make_copy()
        cast_weights(self._copy, getattr(torch, case.sampled))
        config = loaded.model.config
        self.vocabulary, self.layers, self.max_context = config.vocab_size, config.num_hidden_layers, 512
        self.dtype = max(case.trained, case.sampled, key=("float32", "float16", "bfloat16").index)  # type: ignore[assignment]

    def _make_copy(self) -> Any:
        return LlamaForCausalLM(copy.deepcopy(self.loaded.model.config)).eval()

    def sync(self) -> None:
        weights = checkpoint_weights(self.loaded.model, self.loaded.adapter)
        self._copy.load_state_dict(weights, strict=False)

    async def of_trainer(self, probe: Probe) -> Scores:
        return score_to_train(self.trainer, probe)

    async def of_samplers(self, probe: Probe) -> Mapping[str, Scores]:
        return {"copy": decode_scores(self._copy, probe)}


async def count_verdicts(case: Case, syncs: int) -> Counter[str]:
    """Return the number of verdicts of each kind."""
    model = {"dtype": case.trained, "lora_rank": 4 if case.lora else 0}
    training = {"learning_rate": case.learning_rate, "max_length": 200}
    comparison = Decoding(case, make_context(model=model, training=training))
    history: list[Check] = []
    judge = Judge(comparison, make_probe(comparison.vocabulary, 72), history)
    found: Counter[str] = Counter()
    for version in range(syncs):
        comparison.sync()
        trainer = await comparison.of_trainer(judge.probe)
        check = Check(version, trainer, await comparison.of_samplers(judge.probe))
        verdict = await judge.judge(check, "copy")
        found[type(verdict).__name__] += 1
        history[:] = [*history, check][-64:]
        batch = random_batch([(5, 6)] * 8, seed=version)
        comparison.trainer.updater.update(batch, replace(PLAN, global_step=version % 100))
    return found


def print_alarms(total: int) -> None:
    torch.set_num_threads(1)
    each = -(-total // len(CASES))
    alarms = 0
    for case in CASES:
        found = asyncio.run(count_verdicts(case, each))
        bad = each - found["Equal"] - found["Rounding"]
        alarms += bad
        kind = "LoRA" if case.lora else "full"
        print(
            f"{kind} trainer {case.trained:9} sampler {case.sampled:9} lr {case.learning_rate:g}: {dict(found)}",
            flush=True,
        )
    print(f"{alarms} alarms in {each * len(CASES)} correct syncs")


# The limit of rounding


SHAPES: dict[str, tuple[Any, Any, dict[str, int]]] = {
    "2 layers, hidden 64": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "hidden_size": 64,
            "intermediate_size": 172,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "vocab_size": 100,
        },
    ),
    "6 layers, hidden 256": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {
            "hidden_size": 256,
            "intermediate_size": 768,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "vocab_size": 8192,
        },
    ),
    "48 layers, hidden 128": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "hidden_size": 128,
            "intermediate_size": 344,
            "num_hidden_layers": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 5000,
        },
    ),
}


def limit_models() -> Iterator[tuple[str, Any]]:
    """Yield models with small and large random weights, and SmolLM2 if it is installed."""
    for name, (config, kind, sizes) in SHAPES.items():
        for std in (0.02, 0.06):
            torch.manual_seed(0)
            model = kind(config(**sizes, max_position_embeddings=512)).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.ndim == 2:
                        parameter.mul_(std / parameter.std())
            yield f"{name}, weights {std}", model

    if (problem := smollm2.missing()) is None:
        yield "SmolLM2-135M", LlamaForCausalLM.from_pretrained(smollm2.exported(), dtype=torch.float32).eval()
    else:
        print(problem)


@dataclass(frozen=True)
class _Loaded:
    model: Any
    adapter: None = None


@dataclass(frozen=True)
class _Trainer:
    loaded: _Loaded
    max_tokens: int = 2048


def print_limits() -> None:
    torch.set_num_threads(1)
    for name, model in limit_models():
        exact = None
        for dtype in DTYPES:
            cast = copy.deepcopy(model)
            cast_weights(cast, getattr(torch, dtype))
            probe = make_probe(model.config.vocab_size, 72)
            scores = score_to_train(_Trainer(_Loaded(cast)), probe)  # type: ignore[arg-type]
            exact = scores if exact is None else exact
            facts: Any = argparse.Namespace(dtype=dtype, layers=model.config.num_hidden_layers)
            limit = rounding_limit(facts, scores)
            decoded = np.abs(decode_scores(cast, probe) - scores).max()
            print(
                f"{name:35} {dtype:9} limit {limit:.1e}, decoded {decoded / limit:5.1%} of it, "
                f"from float32 {np.abs(exact - scores).max() / limit:5.1%}",
                flush=True,
            )


# Cost


class Meter(Observer):
    """CPU seconds of the process in all steps, and the number of sampled tokens."""

    def __init__(self) -> None:
        self.seconds, self.tokens, self._began = 0.0, 0, 0.0

    def on_batch_start(self, step: TrainStep) -> None:
        self._began = time.process_time()

    def on_batch_end(self, step: TrainStep) -> None:
        self.seconds += time.process_time() - self._began
        assert step.batch is not None
        self.tokens += int(step.batch.loss_mask.sum())


def measure_cost(name: str, steps: int, overrides: list[str]) -> None:
    """Print the CPU time of a check, and its share of the training between two checks."""
    checks: list[float] = []
    real = WeightCheck._check

    async def check(self: WeightCheck, judge: Judge, version: int) -> Any:
        start = time.process_time()
        try:
            return await real(self, judge, version)
        finally:
            checks.append(time.process_time() - start)

    registry, meter = Registry.load(), Meter()
    WeightCheck._check = check  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as directory:
            shared = [
                "rllm.trainer.val_before_train=false",
                "rllm.trainer.logger=[]",
                f"rllm.trainer.total_batches={steps}",
            ]
            keys = [*shared, f"rllm.trainer.output_dir={directory}", *overrides]
            plan = make_plan(compose(registry, layers_from_overrides(keys)), registry)
            run = RunDirectory.open(plan.config.rllm.trainer, overwrite=True)
            TrainingLoop(plan, run, train_tasks=load_tasks(plan, "train"), val_tasks=(), observers=[meter]).fit()
            run.close()
    finally:
        WeightCheck._check = real  # type: ignore[method-assign]
    # The first check is before the first step, and includes the start of torch's kernels.
    later = checks[1:]
    training = meter.seconds - sum(later)
    mean = sum(later) / len(later)
    between = TOKENS_PER_PROBE_TOKEN * make_probe(100, 72).tokens.size / meter.tokens * training
    print(
        f"{name}: {mean * 1e3:.1f} ms per check, {training / steps * 1e3:.0f} ms per step of {meter.tokens / steps:.0f}"
        f" sampled tokens, so {mean / between:.2%} of the CPU between two checks",
        flush=True,
    )


EVERY = "rllm.trainer.observers=[{name: weight_check, every: 1}]"


def print_cost() -> None:
    torch.set_num_threads(1)
    measure_cost("guess", 30, ["rllm.env.name=guess", EVERY])
    with tempfile.TemporaryDirectory() as directory:
        model = smollm2.save_random(Path(directory))
        keys = ["rllm.env.name=sum", f"model.name={model}", "data.train_batch_size=4", "rllm.rollout.n=8"]
        for dtype in ("float32", "bfloat16"):
            measure_cost(
                f"SmolLM2's shape, {dtype}", 2, [*keys, "data.max_response_length=64", f"model.dtype={dtype}", EVERY]
            )


# The backend `tinker`


TINKER_SYNCS = 160
TINKER_CASES: list[tuple[float, int, str]] = [
    (1e-2, 4, "snapshot"),  # diverges
    (1e-3, 8, "snapshot"),
    (1e-4, 32, "inflight"),
    (1e-6, 8, "snapshot"),
]
"""Learning rate, rank, and kind of the sampling client."""


async def sync_tinker(url: str, learning_rate: float, rank: int, weights: str) -> None:
    """Make steps with random rows, and check all weight syncs. Stops with an error at an alarm."""
    config = TinkerConfig(
        tinker_base_url=url,
        model={"name": "tiny", "lora_rank": rank},
        training={"learning_rate": learning_rate, "max_length": 200},
        rollout_engine={"weights": weights},
    )
    context = RunContext(config=RunConfig(), backend_config=config, seed=0, total_steps=TINKER_SYNCS)
    backend = make_check().wrap_backend(TinkerBackend(), RUN)
    try:
        await backend.start(context)
        for step in range(TINKER_SYNCS - 1):
            batch = await backend.process(random_batch([(5, 6)] * 8, seed=step), frozenset())
            await backend.update(batch, replace(PLAN, global_step=step))
            await backend.sync_weights(step + 1)
    finally:
        await backend.close()


def print_tinker() -> None:
    os.environ["TINKER_API_KEY"] = "tml-benchmark"
    for dtype in ("float32", "bfloat16"):
        with tempfile.TemporaryDirectory() as directory, tiny_server(Path(directory), dtype=dtype) as server:
            for case in TINKER_CASES:
                found = "no alarm"
                try:
                    with contextlib.redirect_stderr(io.StringIO()):
                        asyncio.run(sync_tinker(server.url, *case))
                except BackendError as error:
                    found = error.message
                print(f"{dtype:9} lr, rank, weights {case}: {TINKER_SYNCS} syncs, {found}", flush=True)
            if dtype == "float32":
                service = ["rllm.backend=tinker", f"tinker_base_url={server.url}", "model.name=tiny"]
                measure_cost("guess", 30, ["rllm.env.name=guess", *service, EVERY])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {
        "faults": print_faults,
        "alarms": lambda: print_alarms(1000),
        "limits": print_limits,
        "cost": print_cost,
        "tinker": print_tinker,
    }
    parser.add_argument("table", nargs="?", choices=tables, help="one table (default: all)")
    chosen = parser.parse_args().table
    for name in [chosen] if chosen else tables:
        tables[name]()


if __name__ == "__main__":
    main()
