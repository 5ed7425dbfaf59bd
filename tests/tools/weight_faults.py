"""Faults of weight syncs, made again in the sender of the backend `local` and in hosted engines, and their verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from local_backend import ScoringCopy, TwoReplicas
from local_models import random_batch
from torch import Tensor

from rllm.builtin.weight_check.observer import WeightCheck, WeightCheckParams
from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.engine import EnginePlugin, NamedTensors
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_local import samplers
from rllm_local.settings import LocalConfig

RUN = TrackedRun(directory=Path(), project_name="", experiment_name="", config={})
PLAN = UpdatePlan(
    global_step=0,
    losses={"agent": choose(Registry.load(), "loss", "rllm-core/ppo", "tests")},
    aggregation="token-mean",
    entropy_coeff=0.0,
    seed=0,
)
STEPS = 3
LORA = {"model": {"lora_rank": 4}}
GATE, UP = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
Weights = dict[str, Tensor]
Fault = Callable[[list[Weights]], Weights]
"""Takes the correct weights of all versions so far, and returns the weights that the sampler gets."""
FIRST = 2
"""The first version with the fault."""


@dataclass
class Sender:
    """Sends weights, with a fault from version `FIRST` on."""

    fault: Fault
    correct: list[Weights] = field(default_factory=list)
    """The correct weights, by version."""

    def send(self, weights: NamedTensors) -> Weights:
        self.correct.append({name: tensor.detach().clone() for name, tensor in weights})
        return self.fault(self.correct) if len(self.correct) > FIRST else self.correct[-1]


def send_earlier(correct: list[Weights]) -> Weights:
    return correct[-2]


def send_gate_twice(correct: list[Weights]) -> Weights:
    return correct[-1] | {UP: correct[-1][GATE]}


def omit_shard(correct: list[Weights]) -> Weights:
    return correct[-1] | {name: tensor for name, tensor in correct[-2].items() if ".layers.1." in name}


def apply_twice(correct: list[Weights]) -> Weights:
    return {name: 2 * tensor - correct[0][name] for name, tensor in correct[-1].items()}


def cast(correct: list[Weights]) -> Weights:
    return {name: tensor.to(torch.bfloat16).to(tensor.dtype) for name, tensor in correct[-1].items()}


def send_base(correct: list[Weights]) -> Weights:
    return correct[0]


def run_steps(backend: Backend, context: RunContext, check: WeightCheck) -> None:
    """Make some steps, and check all weight syncs."""

    async def scenario() -> None:
        wrapped = check.wrap_backend(backend, RUN)
        try:
            await wrapped.start(context)
            for step in range(STEPS):
                batch = random_batch([(5, 6)] * 8, seed=step)
                await wrapped.update(batch, replace(PLAN, global_step=step))
                await wrapped.sync_weights(step + 1)
        finally:
            await wrapped.close()

    asyncio.run(scenario())


def make_context(*, versions: int = 1, engine: Any = None, **sections: Any) -> RunContext:
    """Return the context of a run with a hosted engine, or with a sampler of so many weight versions."""
    choice = None
    if engine is not None:
        plugin = EnginePlugin(name="copy", summary="For tests.", load=lambda: lambda params: engine)
        registered = Registered(plugin=plugin, distribution="tests", version="0")
        choice = PluginChoice(registered=registered, params=NoParams())
    return RunContext(
        config=RunConfig(),
        backend_config=LocalConfig(**({"training": {"learning_rate": 1e-3, "max_length": 200}} | sections)),
        seed=0,
        total_steps=STEPS,
        engine=choice,
        versions_served=versions,
    )


def make_check(**options: Any) -> WeightCheck:
    """Return a check of every weight version."""
    return WeightCheck(WeightCheckParams(every=1, **options))


@contextmanager
def faulty_copies(fault: Fault) -> Iterator[None]:
    """Apply a fault when the sampler with several versions copies the weights."""
    sender, copy_weights = Sender(fault), samplers.copy_weights
    sender.correct.append({})

    def send(trained: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
        if not sender.correct[0]:
            sender.correct[0] = {name: into[name].clone() for name in trained}
        copy_weights(sender.send(trained.items()), into)

    samplers.copy_weights = send
    try:
        yield
    finally:
        samplers.copy_weights = copy_weights


class FaultyEngine(ScoringCopy):
    """A hosted copy that gets its weights with a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(NoParams())
        self._sender = Sender(fault)

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        await super().load_weights(self._sender.send(weights).items(), version)


class StaleReplica(TwoReplicas):
    """Two hosted copies. The second gets no new weights after version 1."""

    async def load_second(self, weights: NamedTensors, version: int) -> None:
        if version < FIRST:
            await super().load_second(weights, version)


class OwnHead(ScoringCopy):
    """A hosted copy whose output layer has its own weights, which never change."""

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        await super().load_weights(weights, version)
        if version == FIRST - 1:
            self.model.lm_head.weight = torch.nn.Parameter(self.model.lm_head.weight.detach().clone())


@dataclass(frozen=True)
class ExpectedError:
    """The settings of a run, and the error that stops it after weight sync `FIRST`."""

    code: str
    text: str
    sections: Mapping[str, Any] = field(default_factory=dict)


SENT: dict[str, tuple[Fault, ExpectedError]] = {
    "LoRA sync dropped": (
        send_base,
        ExpectedError("sampler-weights-faulty", "has the base model without the adapter.", LORA),
    ),
    "gate matrix sent twice": (
        send_gate_twice,
        ExpectedError("sampler-tensors-differ", f"tensors differ: {UP} has the values of {GATE}."),
    ),
    "shard missing": (omit_shard, ExpectedError("sampler-tensors-differ", "tensors differ: model.layers.1.")),
    "cast to bfloat16": (cast, ExpectedError("sampler-weights-faulty", "has the weights rounded to bfloat16.")),
    "sync of step k - 1": (send_earlier, ExpectedError("sampler-weights-stale", "is unchanged since sync 1.")),
}
"""Faults of any sender."""
HOSTED: dict[str, tuple[Callable[[], ScoringCopy], ExpectedError]] = {
    **{name: (partial(FaultyEngine, fault), expected) for name, (fault, expected) in SENT.items()},
    "merged adapter applied twice": (
        partial(FaultyEngine, apply_twice),
        ExpectedError("sampler-weights-faulty", "has the adapter applied twice.", LORA),
    ),
    "stale replica of two": (
        partial(StaleReplica, NoParams()),
        ExpectedError("sampler-weights-stale", "replica 1 is unchanged since sync 1."),
    ),
    "tied head not updated": (
        partial(OwnHead, NoParams()),
        ExpectedError("sampler-tensors-differ", "tensors differ: lm_head.weight."),
    ),
}
"""Faults of a hosted engine."""
