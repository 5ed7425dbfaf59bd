"""Runs in this process, which take a fraction of a second each, with all data of their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_runs import RecordedRuns
from tool_model import save_tool_model

from rllm.config.compose import compose
from rllm.config.layers import Layer, Tier, layer_from_keys
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.planning.preflight import check_to_train
from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm.training.setup import load_tasks
from rllm_core.contracts.engine import Completion, EnginePlugin, EngineSetup, NamedTensors, SamplingParams
from rllm_core.contracts.environment import Environment, EnvironmentPlugin, Outcome
from rllm_core.contracts.observer import Observer, ObserverPlugin
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.reward import RewardPlugin
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, Task
from rllm_core.plugins.registry import Registry

QUICK: dict[str, Any] = {
    "rllm.rollout.n": 2,
    "rllm.rollout.n_val": 1,
    "rllm.trainer.total_batches": 1,
    "rllm.trainer.val_before_train": False,
    "rllm.trainer.test_freq": -1,
    "rllm.trainer.output_dir": "runs",
    "data.train_batch_size": 2,
}
"""Layer below a test's settings, like values of an earlier run. It may have values that other settings make unused."""
FOUR_TASKS = {"rllm.env.env_args.largest": 1}


@dataclass
class Trained(Observer):
    """A finished run."""

    plan: RunPlan
    directory: Path
    steps: list[TrainStep] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    """Return the lines of its `metrics.jsonl`."""

    def on_batch_end(self, step: TrainStep) -> None:
        self.steps.append(step)

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.steps[-1].metrics

    @property
    def episodes(self) -> list[Episode]:
        return self.steps[-1].generated


class Steps(Observer):
    """Stores the steps of a loop."""

    def __init__(self) -> None:
        self.steps: list[TrainStep] = []

    def on_batch_end(self, step: TrainStep) -> None:
        self.steps.append(step)


Train = Callable[..., Trained]


@pytest.fixture
def without_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of runs with expensive rollouts. A validation at the end would run every task of the environment."""
    monkeypatch.setattr(Trained, "on_validation_start", lambda *_: False)


def plan_of(settings: Mapping[str, Any], registry: Registry, layers: Iterable[Layer] = ()) -> RunPlan:
    """Return the plan of a user's values above `layers`."""
    return make_plan(compose(registry, [*layers, layer_from_keys(settings, "the test")]), registry)


@pytest.fixture(scope="module", autouse=True)
def _forked_children(forked_children: None) -> None:
    """Fork the processes of a run, so that none imports torch and transformers."""


@pytest.fixture(scope="module", autouse=True)
def _no_pages() -> Iterator[None]:
    """Skip the report in this process, because it takes more time than a short run. `test_commands.py` reads it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rllm_view.report.write_page", lambda *_: None)
        yield


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment of other processes, which write no report either. `with_view` keeps it."""
    return environ | {"RLLM_BLOCK_PLUGINS": "rllm-view"}


@pytest.fixture
def with_view(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the report in every run, and the commands that read runs."""
    from rllm_view.static import write_page

    environ["RLLM_BLOCK_PLUGINS"] = ""
    monkeypatch.setattr("rllm_view.report.write_page", write_page)


@pytest.fixture(scope="session")
def carry_out() -> Callable[[RunPlan], Trained]:
    """Make the run of a plan."""

    def run(plan: RunPlan) -> Trained:
        tasks = {f"{split}_tasks": load_tasks(plan, split) for split in ("train", "val")}
        check_to_train(plan, **tasks)
        directory = RunDirectory.open(plan.config.rllm.trainer, overwrite=True)
        trained = Trained(plan, directory.path)
        try:
            loop = TrainingLoop(plan, directory, **tasks, observers=[trained], warn=trained.warnings.append)
            loop.fit()
            trained.history = directory.history()
        finally:
            directory.close()
        return trained

    return run


def quick_plan(worlds: Registry, environment: str | None, settings: Mapping[str, Any] | None) -> RunPlan:
    """Return the plan of one step of two tasks with two rollouts each, changed by the settings."""
    named = {} if environment is None else {"rllm.env.name": environment}
    beneath = layer_from_keys({**QUICK, **(FOUR_TASKS if environment == "sum" else {})}, "before", Tier.SAVED)
    return plan_of({**named, **(settings or {})}, worlds, [beneath])


@pytest.fixture
def train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worlds: Registry, carry_out: Callable[[RunPlan], Trained]
) -> Train:
    """Make the run of a `quick_plan`. It replaces the last run."""
    monkeypatch.chdir(tmp_path)

    def run(environment: str | None = "sum", settings: Mapping[str, Any] | None = None) -> Trained:
        return carry_out(quick_plan(worlds, environment, settings))

    return run


@pytest.fixture(scope="session")
def shared_run(
    tmp_path_factory: pytest.TempPathFactory, worlds: Registry, carry_out: Callable[[RunPlan], Trained]
) -> Train:
    """Make the run of a `quick_plan`, once for all tests. They only read its directory, or a copy."""
    made: dict[str, Trained] = {}

    def run(environment: str | None = "sum", settings: Mapping[str, Any] | None = None) -> Trained:
        key = repr((environment, settings))
        if key not in made:
            with chdir(tmp_path_factory.mktemp("shared")):
                trained = made[key] = carry_out(quick_plan(worlds, environment, settings))
                trained.directory = trained.directory.absolute()
        return made[key]

    return run


@pytest.fixture(scope="session")
def recorded_runs(request: pytest.FixtureRequest) -> RecordedRuns:
    """Return short runs of the real command with a record, made once for all test processes."""
    return RecordedRuns.of(request)


class Paying(Environment):
    """Three turns with rewards 1, 2 and 4 for any response."""

    def __init__(self, params: NoParams) -> None:
        self._turn = 0

    @classmethod
    def tasks(cls, split: str, params: NoParams) -> list[Task]:
        return [Task(id=f"t{number}", data={"number": number}) for number in range(4)]

    def reset(self, task: Mapping[str, Any]) -> str:
        return "guess"

    def step(self, action: str) -> Outcome:
        self._turn += 1
        return Outcome(observation="is", reward=2.0 ** (self._turn - 1), done=self._turn == 3, correct=True)


class Lucky(Paying):
    """One turn. The reward depends on the letters of the response, and half of the responses are right."""

    def step(self, action: str) -> Outcome:
        luck = sum(map(ord, action))
        return Outcome(reward=float(luck % 5), done=True, correct=luck % 2 == 0)


class Parrot:
    """A rollout engine that returns the last token of its prompt."""

    def __init__(self, params: NoParams) -> None:
        self.version = -1

    async def start(self, setup: EngineSetup) -> None:
        self.renderer, self.max_context = setup.renderer, setup.max_context

    async def load_weights(self, weights: NamedTensors, version: int) -> None:
        assert dict(weights)
        self.version = version

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        token, logprob = np.array(prompt_ids[-1:], np.int32), np.array([-1.0], np.float32)
        return Completion(token_ids=token, logprobs=logprob, finish_reason="length", weight_version=self.version)

    async def end_session(self, session: str) -> None:
        pass

    async def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def worlds() -> Registry:
    """Return the installed plugins with environments, an observer, a reward and an engine for tests."""
    registry = Registry.load()
    multi = {"rllm.workflow.name": "multi_turn_workflow"}
    for world in (Paying, Lucky):
        registry.add(
            EnvironmentPlugin(
                name=world.__name__.lower(),
                summary="For tests.",
                load=lambda world=world: world,
                blocking=False,
                defaults=multi,
            )
        )
    common: dict[str, Any] = {"summary": "For tests."}
    registry.add(ObserverPlugin(name="watcher", load=lambda: lambda params: Observer(), **common))
    registry.add(RewardPlugin(name="even", load=lambda: lambda params: lambda rollout: 1.0, **common))
    registry.add(EnginePlugin(name="parrot", load=lambda: Parrot, **common))
    return registry


@pytest.fixture(scope="session")
def thinking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose prompts end with a question mark unless thinking is switched off."""
    from rllm_local.tiny import build_model, build_tokenizer

    directory = tmp_path_factory.mktemp("thinking")
    tokenizer = build_tokenizer()
    tokenizer.chat_template += "{%- if enable_thinking is not defined or enable_thinking -%}?{%- endif -%}"
    tokenizer.save_pretrained(directory)
    build_model(len(tokenizer), seed=3).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tool_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights, with a chat template that shows tools."""
    directory = tmp_path_factory.mktemp("tools")
    save_tool_model(directory)
    return directory
