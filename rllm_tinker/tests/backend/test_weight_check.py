"""Faults of weight syncs on the server. The check finds each at its sync, and names it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error
from local_models import random_batch
from tinker_in_process import RunningServer, tiny_server

from rllm.builtin.weight_check.observer import WeightCheck, WeightCheckParams
from rllm_core.contracts.backend import RunContext, UpdatePlan
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.errors import BackendError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_tinker.backend import TinkerBackend
from rllm_tinker.health import HttpHealth, ServerAbilities
from rllm_tinker.settings import TinkerConfig
from rllm_tinker_server.lora import AdapterWeights, Factors

KEY = "tml-test"
STEPS = 3
FAULTY = 2
"""Number of the first sync with a fault."""
GATE, UP = "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"
RUN = TrackedRun(directory=Path(), project_name="", experiment_name="", config={})
Adapters = list[AdapterWeights]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with tiny_server(tmp_path_factory.mktemp("checkpoints"), dtype=request.param) as running:
        yield running


@dataclass(frozen=True)
class CheckedRun:
    """A run whose weight syncs are all checked."""

    server: RunningServer
    plan: UpdatePlan

    def make(self, steps: int = STEPS, **sections: Any) -> None:
        """Make some steps."""
        defaults = {"training": {"learning_rate": 1e-2, "max_length": 200}, "model": {"name": "tiny", "lora_rank": 4}}
        config = TinkerConfig(**{"tinker_base_url": self.server.url, **defaults, **sections})
        context = RunContext(config=RunConfig(), backend_config=config, seed=0, total_steps=steps)

        async def scenario() -> None:
            backend = WeightCheck(WeightCheckParams(every=1)).wrap_backend(TinkerBackend(), RUN)
            try:
                await backend.start(context)
                for step in range(steps):
                    batch = await backend.process(random_batch([(5, 6)] * 8, seed=step), frozenset())
                    await backend.update(batch, replace(self.plan, global_step=step))
                    await backend.sync_weights(step + 1)
            finally:
                await backend.close()

        asyncio.run(scenario())

    def expect(self, code: str, *values: object) -> None:
        """Make some steps, of which one ends with an error at the first faulty sync."""
        with expect_error(BackendError, code, f"After weight sync {FAULTY}, the sampler", *values):
            self.make()


@pytest.fixture
def run(server: RunningServer, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> CheckedRun:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    losses = {"agent": choose(registry, "loss", "rllm-core/ppo", "tests")}
    plan = UpdatePlan(global_step=0, losses=losses, aggregation="token-mean", entropy_coeff=0.0, seed=0)
    return CheckedRun(server, plan)


@pytest.fixture
def store(run: CheckedRun, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Store faulty weights for sampling: ``store(fault)``. The fault gets the correct weights of all syncs so far."""
    snapshots, correct = run.server.service.snapshots, Adapters()
    put = snapshots.put

    def use(fault: Callable[[Adapters], AdapterWeights]) -> None:
        def put_faulty(key: str, weights: AdapterWeights, **more: Any) -> None:
            correct.append(weights)
            put(key, fault(correct) if len(correct) > FAULTY else weights, **more)

        monkeypatch.setattr(snapshots, "put", put_faulty)

    return use


@pytest.fixture
def merge(run: CheckedRun, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Change merged models: ``merge(fault)``. The fault gets the layers with an adapter, the model and its base."""
    models, base, merged = run.server.service.samplers.models, run.server.service.host.model, list[AdapterWeights]()
    merge_correctly = models._merge

    def use(fault: Callable[[Any, Any, Mapping[str, Factors]], None]) -> None:
        def merge_faulty(weights: AdapterWeights | None) -> Any:
            model = merge_correctly(weights)
            if weights is not None:
                merged.append(weights)
                if len(merged) > FAULTY:
                    fault(model, base, weights.factors)
            return model

        monkeypatch.setattr(models, "_merge", merge_faulty)

    return use


def with_factors(weights: AdapterWeights, factors: Mapping[str, Factors]) -> AdapterWeights:
    return replace(weights, factors=factors)


def test_clean_syncs_give_no_alarm(run: CheckedRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.make()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Checked that the sampler has the trained weights: log-probs are equal")


@pytest.mark.long
def test_diverging_model_gives_no_alarm(run: CheckedRun) -> None:
    run.make(steps=60)


def test_sampler_that_switches_weights_gives_no_alarm(run: CheckedRun) -> None:
    run.make(rollout_engine={"weights": "inflight"})


def test_base_model_instead_of_the_adapter_is_named(run: CheckedRun, merge: Callable[..., None]) -> None:
    def drop(model: Any, base: Any, adapted: Mapping[str, Factors]) -> None:
        for name in adapted:
            model.set_submodule(name, base.get_submodule(name))

    merge(drop)
    run.expect("sampler-weights-faulty", "the base model without the adapter")


def test_gate_sent_twice_is_named(run: CheckedRun, store: Callable[..., None]) -> None:
    store(lambda correct: with_factors(correct[-1], {**correct[-1].factors, UP: correct[-1].factors[GATE]}))
    run.expect("sampler-tensors-differ", f"{UP}.lora_A.weight has the values of {GATE}.lora_A.weight")


def test_missing_shard_is_named(run: CheckedRun, store: Callable[..., None]) -> None:
    def omit(correct: Adapters) -> AdapterWeights:
        return with_factors(
            correct[-1], {name: each for name, each in correct[-1].factors.items() if ".1." not in name}
        )

    store(omit)
    run.expect("sampler-tensors-differ", "tensors differ: model.layers.1.self_attn.q_proj.lora_A.weight, ")


def test_earlier_sync_is_named(run: CheckedRun, store: Callable[..., None]) -> None:
    store(lambda correct: correct[-2])
    run.expect("sampler-weights-stale", "unchanged since sync 1")


def test_adapter_merged_twice_is_named(run: CheckedRun, merge: Callable[..., None]) -> None:
    def merge_again(model: Any, base: Any, adapted: Mapping[str, Factors]) -> None:
        for name in adapted:
            weight = model.get_submodule(name).weight
            weight.data = 2 * weight.data - base.get_submodule(name).weight.float()

    merge(merge_again)
    run.expect("sampler-weights-faulty", "the adapter applied twice")


def test_rounded_weights_are_named(run: CheckedRun, merge: Callable[..., None]) -> None:
    def cast(model: Any, base: Any, adapted: Mapping[str, Factors]) -> None:
        for name in adapted:
            weight = model.get_submodule(name).weight
            weight.data = weight.data.bfloat16().float()

    merge(cast)
    is_exact = run.server.service.host.base.dtype == "float32"
    run.expect("sampler-weights-faulty" if is_exact else "sampler-tensors-differ", "rounded to bfloat16")


def test_rounded_adapter_is_named(run: CheckedRun, store: Callable[..., None]) -> None:
    def cast(correct: Adapters) -> AdapterWeights:
        rounded = {
            name: Factors(each.down.bfloat16().float(), each.up.bfloat16().float())
            for name, each in correct[-1].factors.items()
        }
        return with_factors(correct[-1], rounded)

    store(cast)
    name = "model.layers.0.self_attn.q_proj.lora_A.weight"
    run.expect("sampler-tensors-differ", f"{name} has the values of {name} rounded to bfloat16")


def test_head_tied_to_the_embedding_is_named(run: CheckedRun, merge: Callable[..., None]) -> None:
    merge(lambda model, base, adapted: model.set_submodule("lm_head", base.lm_head))
    run.expect("sampler-tensors-differ", "tensors differ: lm_head.weight.")


@pytest.fixture
def stale_replica(run: CheckedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second request is scored with the weights of the sync before."""
    samplers, synced, requests = run.server.service.samplers, Adapters(), list[AdapterWeights]()
    score = samplers.score

    async def score_on_two_replicas(weights: AdapterWeights, *arguments: Any, **more: Any) -> Any:
        requests.append(weights)
        if weights not in synced:
            synced.append(weights)
        is_stale = len(requests) % 2 and len(synced) > FAULTY
        return await score(synced[-2] if is_stale else weights, *arguments, **more)

    monkeypatch.setattr(samplers, "score", score_on_two_replicas)


@pytest.mark.usefixtures("stale_replica")
def test_stale_replica_of_two_is_named(run: CheckedRun) -> None:
    run.expect("sampler-weights-stale", "unchanged since sync 1")


@pytest.fixture
def as_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server reports no additions to the Tinker API, as the service."""

    async def wait(health: HttpHealth, patience: float) -> ServerAbilities:
        return ServerAbilities()

    monkeypatch.setattr(HttpHealth, "wait", wait)


@pytest.mark.usefixtures("as_service")
def test_service_without_additions_gives_no_alarm(run: CheckedRun) -> None:
    run.make()


@pytest.mark.usefixtures("as_service")
def test_earlier_sync_of_a_service_is_named(run: CheckedRun, store: Callable[..., None]) -> None:
    store(lambda correct: correct[-2])
    run.expect("sampler-weights-stale", "unchanged since sync 1")


@pytest.mark.usefixtures("as_service")
def test_base_model_of_a_service_is_named(run: CheckedRun, merge: Callable[..., None]) -> None:
    def drop(model: Any, base: Any, adapted: Mapping[str, Factors]) -> None:
        for name in adapted:
            model.set_submodule(name, base.get_submodule(name))

    merge(drop)
    run.expect("sampler-weights-faulty", "the base model without the adapter")


@pytest.mark.usefixtures("as_service")
def test_other_fault_of_a_service_is_unknown(run: CheckedRun, merge: Callable[..., None]) -> None:
    def scale(model: Any, base: Any, adapted: Mapping[str, Factors]) -> None:
        for name in adapted:
            model.get_submodule(name).weight.data *= 3

    merge(scale)
    run.expect("sampler-weights-unknown")
