"""Faults of weight syncs, made again in the sender of the backend `local` and in a hosted engine of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from local_backend import HostedCopy, ScoringCopy, TwoReplicas
from local_models import random_batch
from torch import Tensor

from rllm.builtin.weight_check.observer import WeightCheck, WeightCheckParams
from rllm_core.contracts.backend import Backend, RunContext, UpdatePlan
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.engine import EnginePlugin, NamedTensors
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.errors import BackendError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_local import samplers
from rllm_local.backend import LocalBackend
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


@dataclass
class Sender:
    """Sends weights, with a fault from one version on."""

    fault: Callable[[list[Weights]], Weights]
    """Takes the correct weights of all versions so far, and returns the weights that the sampler gets."""
    since: int = 2
    """The first version with the fault."""
    correct: list[Weights] = field(default_factory=list)
    """The correct weights, by version."""

    def send(self, weights: NamedTensors) -> Weights:
        self.correct.append({name: tensor.detach().clone() for name, tensor in weights})
        return self.fault(self.correct) if len(self.correct) > self.since else self.correct[-1]


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


def run(backend: Backend, context: RunContext, check: WeightCheck) -> None:
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


def context(*, versions: int = 1, engine: Any = None, **sections: Any) -> RunContext:
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
    return WeightCheck(WeightCheckParams(every=1, **options))


def find(context: RunContext, check: WeightCheck | None = None) -> tuple[str, str]:
    with pytest.raises(BackendError) as raised:
        run(LocalBackend(), context, check or make_check())
    return raised.value.code, raised.value.message


def in_versions(sender: Sender, monkeypatch: pytest.MonkeyPatch, **sections: Any) -> RunContext:
    """Return the context of a run whose sampler serves two versions, and gets its weights from the sender."""
    sender.correct.append({})
    copy_weights = samplers.copy_weights

    def faulty(trained: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
        if not sender.correct[0]:
            sender.correct[0] = {name: into[name].clone() for name in trained}
        copy_weights(sender.send(trained.items()), into)

    monkeypatch.setattr(samplers, "copy_weights", faulty)
    return context(versions=2, **sections)


def in_engine(sender: Sender, **sections: Any) -> RunContext:
    """Return the context of a run with a hosted engine, which gets its weights from the sender."""

    class Faulty(ScoringCopy):
        async def load_weights(self, weights: NamedTensors, version: int) -> None:
            await super().load_weights(sender.send(weights).items(), version)

    return context(engine=Faulty(NoParams()), **sections)


FAULTS = {
    "shard missing": (omit_shard, {}, "sampler-tensors-differ", "tensors differ: model.layers.1."),
    "gate sent twice": (
        send_gate_twice,
        {},
        "sampler-tensors-differ",
        f"tensors differ: {UP} has the values of {GATE}.",
    ),
    "cast": (cast, {}, "sampler-weights-faulty", "the weights rounded to bfloat16"),
    "earlier sync": (send_earlier, {}, "sampler-weights-stale", "unchanged since sync 1"),
    "LoRA dropped": (send_base, LORA, "sampler-weights-faulty", "the base model without the adapter"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_in_our_sender_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, sections, code, text = FAULTS[name]
    found, message = find(in_versions(Sender(fault), monkeypatch, **sections))
    assert (found, "After weight sync 2" in message, text in message) == (code, True, True), message


@pytest.mark.parametrize("name", FAULTS)
def test_fault_in_hosted_engine_is_named(name: str) -> None:
    fault, sections, code, text = FAULTS[name]
    found, message = find(in_engine(Sender(fault), **sections))
    assert (found, "replica 0" in message, text in message) == (code, True, True), message


def test_adapter_merged_twice_is_named() -> None:
    found, message = find(in_engine(Sender(apply_twice), **LORA))
    assert (found, "the adapter applied twice" in message) == ("sampler-weights-faulty", True), message


def test_stale_replica_of_two_is_named() -> None:
    class Stale(TwoReplicas):
        async def load_second(self, weights: NamedTensors, version: int) -> None:
            if version < 2:
                await super().load_second(weights, version)

    found, message = find(context(engine=Stale(NoParams())))
    assert found == "sampler-weights-stale"
    assert "After weight sync 2, replica 1 is unchanged since sync 1." in message


def test_tied_head_with_old_values_is_named() -> None:
    class OwnHead(ScoringCopy):
        async def load_weights(self, weights: NamedTensors, version: int) -> None:
            await super().load_weights(weights, version)
            if version == 1:
                self.model.lm_head.weight = torch.nn.Parameter(self.model.lm_head.weight.detach().clone())

    found, message = find(context(engine=OwnHead(NoParams())))
    assert (found, "tensors differ: lm_head.weight." in message) == ("sampler-tensors-differ", True), message


def test_tied_head_of_a_copy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_model = samplers.copy_model

    def copy_with_own_head(model: Any, trained: Any) -> Any:
        copied = copy_model(model, trained)
        copied.lm_head.weight = torch.nn.Parameter(copied.lm_head.weight.detach().clone())
        return copied

    monkeypatch.setattr(samplers, "copy_model", copy_with_own_head)
    found, message = find(context(versions=2))
    assert (found, "tensors differ: lm_head.weight." in message) == ("sampler-tensors-differ", True), message


@pytest.mark.parametrize("name", ["shard missing", "earlier sync"])
def test_fault_below_the_rounding_of_bfloat16_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, _, code, text = FAULTS[name]
    small = {"model": {"dtype": "bfloat16"}, "training": {"learning_rate": 3e-5, "max_length": 200}}
    check = make_check()
    found, message = find(in_versions(Sender(fault), monkeypatch, **small), check)
    assert (found, text in message) == (code, True), message
    assert float(message.rpartition("by up to ")[2].rstrip(".")) < 0.1


@pytest.mark.long
def test_stale_copy_of_the_training_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender(send_earlier)
    made = replace(in_versions(sender, monkeypatch), versions_served=1, overlaps=True)
    found, message = find(made)
    assert (found, "unchanged since sync 1" in message) == ("sampler-weights-stale", True), message


def test_difference_without_digests_is_unknown() -> None:
    class Silent(ScoringCopy):
        async def digests(self, replica: str) -> Mapping[str, str]:
            return {}

        async def load_weights(self, weights: NamedTensors, version: int) -> None:
            scale = 1.0 + 0.1 * (version == 2)
            await super().load_weights({name: scale * tensor for name, tensor in weights}.items(), version)

    found, message = find(context(engine=Silent(NoParams())))
    assert (found, "replica 0 has not the trained weights." in message) == ("sampler-weights-unknown", True), message


def test_warning_does_not_stop_the_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run(LocalBackend(), in_versions(Sender(send_earlier), monkeypatch), make_check(on_difference="warn"))
    assert "warning: After weight sync 2, the sampler is unchanged since sync 1." in capsys.readouterr().err


CLEAN = {
    "shared": {},
    "two versions": {"versions": 2},
    "hosted": {"engine": ScoringCopy},
    "two replicas": {"engine": TwoReplicas},
    "LoRA": LORA,
    "LoRA hosted": {"engine": ScoringCopy, **LORA},
    "bfloat16": {"versions": 2, "model": {"dtype": "bfloat16"}},
    "bfloat16 hosted": {"engine": ScoringCopy, "model": {"dtype": "bfloat16"}},
    "LoRA bfloat16 hosted": {"engine": ScoringCopy, "model": {"dtype": "bfloat16", "lora_rank": 4}},
}


@pytest.mark.parametrize("name", CLEAN)
def test_clean_syncs_give_no_alarm(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = dict(CLEAN[name])
    if "engine" in settings:
        settings["engine"] = settings["engine"](NoParams())
    run(LocalBackend(), context(**settings), make_check())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Sampler's weights checked: equal")


def test_engine_without_scores_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    run(LocalBackend(), context(engine=HostedCopy(NoParams())), make_check())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("The sampler's weights are not checked")
