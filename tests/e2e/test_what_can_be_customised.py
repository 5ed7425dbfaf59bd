"""What the documentation of rLLM lists under "What you cannot customize today", row by row: here it can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import Field

from rllm.config.layers import Tier, layer_from_dotted
from rllm_core.contracts.backend import BackendPlugin, Capabilities, RunContext, UpdateResult
from rllm_core.contracts.estimator import AdvantageInput, Advantages, EstimatorPlugin
from rllm_core.contracts.loss import LossInput, LossPlugin
from rllm_core.contracts.plugin import NoParams, Params, Plugin
from rllm_core.contracts.rejection import RejectionPlugin, RejectionResult
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import TrajectoryGroup
from rllm_core.plugins.registry import Registry

QUICK: dict[str, Any] = {
    "rllm.rollout.n": 2,
    "rllm.trainer.total_batches": 2,
    "rllm.trainer.val_before_train": False,
    "rllm.trainer.test_freq": -1,
    "rllm.trainer.output_dir": "runs",
    "data.train_batch_size": 2,
    "rllm.env.name": "guess",
}
"""Beneath the settings of a test."""
COMMON: dict[str, Any] = {"summary": "For tests.", "params": NoParams}
PLANNED = (
    "estimator rloo rllm-core",
    "estimator reinforce rllm-core",
    "grouping task rllm-core",
    "loss importance_sampling rllm-core",
    "rejection group rllm-core",
)
Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: Any, carry_out: Any) -> Run:
    """Train two steps with these settings and plugins besides what is installed."""
    monkeypatch.chdir(tmp_path)

    def make(settings: Mapping[str, Any], *plugins: Plugin[Any]) -> Any:
        registry = Registry.load()
        for plugin in plugins:
            registry.add(plugin)
        return carry_out(planned(settings, registry, [layer_from_dotted(QUICK, "before", Tier.SAVED)]))

    return make


def _stage(name: str, body: Callable[[TrainStep], None], reads: str, writes: str) -> StagePlugin[Any]:
    def load() -> Any:
        def make(context: object, params: NoParams) -> Any:
            async def stage(step: TrainStep) -> None:
                body(step)

            return stage

        return make

    return StagePlugin(name=name, load=load, reads=frozenset(reads.split()), writes=frozenset(writes.split()), **COMMON)


def test_training_pipeline_stages(run: Run) -> None:
    """Stages are added, removed, replaced and reordered from config."""

    def count(step: TrainStep) -> None:
        step.metrics["mine/episodes"] = float(len(step.episodes))

    def ones(step: TrainStep) -> None:
        step.batch = step.filled_batch.with_columns(advantages=step.filled_batch.loss_mask.astype(np.float32))

    trained = run(
        {
            "rllm.pipeline.insert": [{"stage": "count", "after": "generate"}],
            "rllm.pipeline.remove": ["reject", "greedy_baseline"],
            "rllm.pipeline.replace": {"advantages": "ones"},
            "rllm.pipeline.move": [{"stage": "compact_filter", "before": "impute_names"}],
        },
        _stage("count", count, "episodes", ""),
        _stage("ones", ones, "batch", "batch.advantages"),
    )
    assert [stage.plugin.name for stage in trained.plan.stages] == [
        "generate",
        "count",
        "compact_filter",
        "impute_names",
        "group",
        "check_rewards",
        "build_batch",
        "process",
        "ones",
        "update",
        "log",
    ]
    assert trained.metrics["mine/episodes"] == 4
    assert trained.steps[0].batch.advantages.max() == 1


class EveryOther:
    """Trains on every second group that it is offered over the whole run."""

    def __init__(self, params: NoParams) -> None:
        self._seen = 0

    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        first_odd = (self._seen + 1) % 2
        self._seen += len(groups)
        return RejectionResult(train=groups[first_odd::2], dropped={"even": groups[1 - first_odd :: 2]})

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seen = state["seen"]


def test_rejection_sampling_logic(run: Run) -> None:
    """A mode of one's own, whose state is in every checkpoint."""
    settings = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "every_other"}
    trained = run(settings, RejectionPlugin(name="every_other", load=lambda: EveryOther, **COMMON))
    assert trained.metrics["batch/groups_dropped_even"] == 1
    assert [len(step.trajectory_groups) for step in trained.steps] == [1, 1]
    manifest = next((trained.directory / "checkpoints" / "latest").rglob("state.json")).read_text()
    assert '"seen": 4' in manifest


def test_transform_pipeline_internals(run: Run) -> None:
    """Names are given after a filter, by a rule of one's own; rewards are looked at before trajectories are grouped."""
    seen: list[int] = []

    def by_turns(step: TrainStep) -> None:
        for episode in step.episodes:
            for trajectory in episode.trajectories:
                trajectory.name = f"turns_{len(trajectory.steps)}"

    def clip(step: TrainStep) -> None:
        assert not step.trajectory_groups
        for episode in step.episodes:
            for trajectory in episode.trajectories:
                trajectory.reward = min(trajectory.reward or 0.0, 0.5)
                seen.append(1)

    trained = run(
        {
            "rllm.pipeline.replace": {"impute_names": "by_turns"},
            "rllm.pipeline.move": [{"stage": "compact_filter", "before": "by_turns"}],
            "rllm.pipeline.insert": [{"stage": "clip", "before": "group"}],
        },
        _stage("by_turns", by_turns, "episodes", "episodes trajectory_names"),
        _stage("clip", clip, "episodes", "episodes"),
    )
    names = [stage.plugin.name for stage in trained.plan.stages]
    assert names.index("compact_filter") < names.index("by_turns") < names.index("clip") < names.index("group")
    assert len(seen) == 8
    assert any(role.startswith("reward/turns_") for role in trained.metrics)


@pytest.mark.long
def test_backend_protocol(run: Run) -> None:
    """A backend is a record and a class; what it does not change it inherits."""
    from rllm_local.backend import LocalBackend
    from rllm_local.settings import LocalConfig

    class Frozen(LocalBackend):
        """Samples and never learns."""

        updates = 0

        async def start(self, run: RunContext) -> Any:
            return await super().start(run)

        async def update(self, batch: Any, plan: Any) -> UpdateResult:
            Frozen.updates += 1
            return UpdateResult(metrics={"actor/loss": 0.0})

    plugin = BackendPlugin(
        name="frozen",
        summary="For tests.",
        params=LocalConfig,
        load=lambda: Frozen,
        capabilities=Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"})),
    )
    trained = run({"rllm.backend": "frozen"}, plugin)
    assert Frozen.updates == 2
    assert trained.metrics["train/weight_version"] == 2


def test_loss_functions(run: Run) -> None:
    """A loss of one's own, by its name, with options, on a backend that knows nothing of it."""

    class TwiceParams(Params):
        factor: float = Field(2.0, description="Multiplies the loss.")

    def double_loss(inputs: LossInput, params: TwiceParams) -> Any:
        return -params.factor * inputs.advantages * inputs.logprobs

    def ones(inputs: AdvantageInput, params: NoParams) -> Advantages:
        return Advantages(values=np.ones(len(inputs.rewards)))

    loss_plugin = LossPlugin(name="twice", summary="For tests.", params=TwiceParams, load=lambda: double_loss)
    estimator = EstimatorPlugin(name="ones", load=lambda: ones, **COMMON)
    settings = {"rllm.algorithm.adv_estimator": "ones", "rllm.algorithm.entropy": {"coeff": 0.0, "final_coeff": 0.0}}
    once = run({**settings, "rllm.algorithm.loss_fn": "reinforce"}, estimator)
    doubled = run({**settings, "rllm.algorithm.loss_fn": {"name": "twice", "factor": 2.0}}, estimator, loss_plugin)
    # The first step starts from the same weights and plays the same attempts.
    loss, other = (trained.history[0]["actor/loss"] for trained in (once, doubled))
    assert other == pytest.approx(2 * loss)
    assert loss != 0


def test_cli_flags(rllm_here: Any) -> None:
    """Grouping, estimator, estimators of roles, rejection and loss are flags."""
    done = rllm_here(
        *("train", "guess", "--estimator", "rloo", "--role-estimator", "judge=reinforce", "--grouping", "task"),
        *("--rejection", "group", "--loss", "importance_sampling", "--dry-run"),
    )
    assert done.returncode == 0, done.stderr
    for line in PLANNED:
        assert line in " ".join(done.stdout.split())


def test_advantage_estimator_kwargs(run: Run) -> None:
    """An estimator has options of its own in config, and sees the groups with all that workflows and groupings say."""

    class BonusParams(Params):
        bonus: float = Field(0.0, description="For solved attempts.")

    def with_bonus(inputs: AdvantageInput, params: BonusParams) -> Advantages:
        solved = np.array([entry["is_correct"] for group in inputs.groups for entry in group.metadata])
        return Advantages(values=1.0 + params.bonus * solved)

    plugin = EstimatorPlugin(name="with_bonus", summary="For tests.", params=BonusParams, load=lambda: with_bonus)
    trained = run({"rllm.algorithm.adv_estimator": {"name": "with_bonus", "bonus": 0.5}}, plugin)
    solved = {episode.is_correct for step in trained.steps for episode in step.generated}
    found = {value for step in trained.steps for value in step.batch.advantages[step.batch.loss_mask].tolist()}
    assert found == {1.5 if correct else 1.0 for correct in solved}


def test_per_step_advantage_computation(run: Run) -> None:
    """Each step of a trajectory has an advantage of its own."""

    def by_turn(inputs: AdvantageInput, params: NoParams) -> Advantages:
        counts = np.diff(inputs.step_offsets)
        return Advantages(values=np.concatenate([np.arange(count) + 1.0 for count in counts]), level="step")

    plugin = EstimatorPlugin(name="by_turn", load=lambda: by_turn, level="step", **COMMON)
    trained = run({"rllm.algorithm.adv_estimator": "by_turn"}, plugin)
    batch = trained.steps[0].batch
    trajectory = batch.groups[0].trajectories[0]
    expected = [turn + 1.0 for turn, step in enumerate(trajectory.steps) for _ in step.response_ids]
    row = slice(0, batch.row_offsets[1])
    assert batch.advantages[row][batch.loss_mask[row]].tolist() == expected
    assert len(set(expected)) > 1
