"""Each trajectory has one outcome in each step, and the outcomes add up to the metrics.

The tests combine every rejection mode with every mask and filter, across a resume.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rllm.runs.run_directory import RunDirectory
from rllm.training.loop import TrainingLoop
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.contracts.workflow import Workflow, WorkflowPlugin
from rllm_core.data.types import Episode, Task, TerminationReason, Trajectory
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.conversation import Conversation
from rllm_record.steps import RecordedOutcome, StepFiles

from .conftest import plan_of

TASKS = [Task(id=f"t{number}", data={"number": number}) for number in range(6)]
STOPPED_AFTER, STEPS = 1, 5
"""Steps of two tasks. Each task occurs before the end of the run, and a few occur twice."""
REASONS = [*TerminationReason]
MODES: dict[str, dict[str, Any]] = {
    "none": {},
    "group": {"enable": True, "mode": "group", "min_trajs_per_group": 3},
    "episode": {"enable": True, "mode": "episode", "min_partial_solve_tasks": 3},
    "dynamic": {"enable": True, "mode": "dynamic", "max_gen_batches": 3},
}
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "overlong": {"rllm.agent.overlong_filter": True},
    "truncated": {"rllm.mask_truncated_samples": True},
    "truncated and overlong": {"rllm.mask_truncated_samples": True, "rllm.agent.overlong_filter": True},
    # `rllm_core/tests/algorithms` tests each mask.
    "masks": {
        "rllm.compact_filtering.enable": True,
        **{f"rllm.compact_filtering.mask_{each.value}": number % 2 == 0 for number, each in enumerate(REASONS)},
    },
    "missing rewards": {"rllm.algorithm.on_missing_reward": "drop"},
    "zero rewards": {"rllm.algorithm.on_missing_reward": "zero"},
    "silent rollouts": {},
}
PAIRS = [
    pytest.param([*MODES][(number + shift) % len(MODES)], chosen, marks=[pytest.mark.long] * (shift > 0))
    for shift in (0, 2)
    for number, chosen in enumerate(FILTERS)
]
"""Each filter with two modes, and each mode with several filters."""

Claim = tuple[str, str]
"""An outcome and the stage that decided it."""
CLAIMS: dict[str, set[Claim]] = {
    "group": {("dropped", "reject")},
    "episode": {("waiting", "reject")},
    "dynamic": {("dropped", "reject")},
    "missing rewards": {("dropped", "check_rewards")},
    "silent rollouts": {("dropped", "build_batch")},
    **{name: {("masked", "compact_filter")} for name, keys in FILTERS.items() if "reward" not in name and keys},
}
"""Outcomes of runs with these settings, besides trained trajectories."""
# A missing reward counts as 0 and gives groups a signal, so more groups exist than a batch needs.
BOTH: dict[tuple[str, str], set[Claim]] = {("dynamic", "zero rewards"): {("waiting", "reject")}}


class Mixed(Workflow):
    """One response. A rollout's outcome depends on its task and its number, not on the response.

    Each group has each termination reason. All rollouts of the last task solve it, and none of the task before it, so
    neither group has a signal.
    """

    without_rewards = silent = False

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        trajectory = Trajectory("agent", uid=uid)
        conversation = Conversation(self.context, trajectory, uid)
        conversation.add_observation("say")
        step = await conversation.generate()
        await conversation.close()
        number, rollout = task["number"], int(uid.rpartition(":")[2])
        step.info["finish_reason"] = "length" if rollout % 3 == 1 else "stop"
        solved = {len(TASKS) - 1: True, len(TASKS) - 2: False}.get(number, rollout % 2 == 0)
        trajectory.reward = float(solved if number >= len(TASKS) - 2 else rollout % 3)
        if self.without_rewards and rollout % 4 == 3:
            trajectory.reward = None
        if self.silent and rollout % 3 == 0:
            trajectory.steps[:] = []
        reason = REASONS[(number + rollout) % len(REASONS)]
        return Episode(id=uid, trajectories=[trajectory], is_correct=solved, termination_reason=reason)


@dataclass
class Watching(Observer):
    """Stores the steps of a run, and stops it after one of them."""

    last: int
    steps: list[TrainStep] = field(default_factory=list)
    stop: Callable[[], None] = lambda: None

    def on_batch_end(self, step: TrainStep) -> None:
        self.steps.append(step)
        if len(self.steps) == self.last:
            self.stop()


TrainTwice = Callable[..., tuple[Path, list[TrainStep]]]


@pytest.fixture
def train_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainTwice:
    """Train, stop after some steps, and resume. Return the directory and the steps."""
    monkeypatch.chdir(tmp_path)

    def run(
        settings: Mapping[str, Any], workflow: type[Mixed], stops: Sequence[int] = (STOPPED_AFTER, STEPS)
    ) -> tuple[Path, list[TrainStep]]:
        registry = Registry.load()
        registry.add(WorkflowPlugin(name="mixed", summary="For tests.", load=lambda: workflow, gives_rewards=True))
        plan = plan_of(dict(settings), registry)
        steps: list[TrainStep] = []
        for last in stops:
            resume = bool(steps)
            directory = RunDirectory.open(plan.config.rllm.trainer, resume=resume)
            watching = Watching(last - len(steps))
            try:
                loop = TrainingLoop(
                    plan, directory, train_tasks=TASKS, val_tasks=[], observers=[watching], resume=resume, warn=str
                )
                watching.stop = loop.stop
                loop.fit()
            finally:
                directory.close()
            steps += watching.steps
        return directory.path, steps

    return run


SHORT: dict[str, Any] = {
    "rllm.workflow.name": "mixed",
    "rllm.rollout.n": 8,
    "rllm.trainer.total_batches": STEPS,
    "rllm.trainer.val_before_train": False,
    "rllm.trainer.test_freq": -1,
    "rllm.trainer.output_dir": "runs",
    "data.train_dataset": {"name": "jsonl", "path": "none.jsonl"},
    "data.train_batch_size": 2,
    "data.max_response_length": 6,
}


def settings_of(mode: Mapping[str, Any], chosen: str) -> dict[str, Any]:
    rejected = {f"rllm.rejection_sample.{name}": value for name, value in mode.items()}
    return {**SHORT, **rejected, **FILTERS[chosen]}


def workflow_of(chosen: str) -> type[Mixed]:
    class PluginChoice(Mixed):
        without_rewards = chosen.endswith("rewards")
        silent = chosen == "silent rollouts"

    return PluginChoice


Group = frozenset[str]
"""The uids of its trajectories. A task that occurs twice gives two groups with one id."""


def groups(outcomes: list[RecordedOutcome], outcome: str, rule: str = "") -> set[Group]:
    """Return the groups with a trajectory that has this outcome by this rule."""
    chosen = [
        each.outcome for each in outcomes if each.outcome.outcome == outcome and each.outcome.rule.startswith(rule)
    ]
    return {frozenset((each.trajectory, *each.peers)) for each in chosen}


def count_of(outcomes: list[RecordedOutcome], rule: str) -> int:
    return sum(each.outcome.rule == rule for each in outcomes)


@pytest.mark.parametrize(("mode", "chosen"), PAIRS)
def test_outcomes_add_up_to_the_metrics(train_twice: TrainTwice, mode: str, chosen: str) -> None:
    directory, steps = train_twice(settings_of(MODES[mode], chosen), workflow_of(chosen))

    assert [step.global_step for step in steps] == list(range(STEPS))
    files, waited, seen = StepFiles(directory / "record"), set[str](), set[Claim]()
    for step in steps:
        outcomes = files.outcomes(step.global_step)
        uids = [each.outcome.trajectory for each in outcomes]
        episodes = files.episode_table(step.global_step).to_pylist()
        assert len(uids) == len(set(uids))
        assert set(uids) == waited | {each["uid"] for episode in episodes for each in episode["trajectories"]}
        assert_sums(outcomes, step.metrics)
        lost = step.metrics.get("batch/missing_rewards", 0)
        assert bool(lost) == (chosen.endswith("rewards") and len(episodes) > 0)
        assert count_of(outcomes, "check_rewards/missing_reward") == (lost if chosen == "missing rewards" else 0)
        waited = {each.outcome.trajectory for each in outcomes if each.outcome.outcome == "waiting"}
        assert waited or step.global_step or mode != "episode"
        seen |= {(each.outcome.outcome, each.outcome.rule.partition("/")[0]) for each in outcomes}
    assert seen == {("trained", "")} | CLAIMS.get(mode, set()) | CLAIMS.get(chosen, set()) | BOTH.get(
        (mode, chosen), set()
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "rejection",
    [MODES["episode"] | {"min_partial_solve_tasks": 5}, MODES["dynamic"]],
    ids=["two groups of one task wait", "groups of a full batch wait"],
)
def test_groups_waiting_across_resume_keep_their_uids(
    train_twice: TrainTwice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rejection: dict[str, Any]
) -> None:
    settings = settings_of(rejection, "zero rewards")
    outcomes = []
    for place, stops in (("whole", (STEPS,)), ("resumed", (1, 3, STEPS))):
        (tmp_path / place).mkdir()
        monkeypatch.chdir(tmp_path / place)
        directory, steps = train_twice(settings, workflow_of("zero rewards"), stops)
        outcomes.append([StepFiles(directory / "record").outcomes(step.global_step) for step in steps])

    whole, resumed = outcomes

    assert any(each.outcome.outcome == "waiting" for each in whole[0] + whole[2])
    assert resumed == whole


def assert_sums(outcomes: list[RecordedOutcome], metrics: Mapping[str, float]) -> None:
    assert len(groups(outcomes, "waiting")) == metrics["batch/groups_waiting"]
    left = groups(outcomes, "trained") | groups(outcomes, "dropped", "build_batch/no_sampled_tokens")
    assert len(left) == metrics["batch/groups_after_filter"]
    assert count_of(outcomes, "group/ungrouped") == metrics.get("batch/trajectories_ungrouped", 0)
    for name, count in metrics.items():
        if name.startswith("batch/groups_dropped_"):
            rule = f"reject/{name.removeprefix('batch/groups_dropped_')}"
            assert len(groups(outcomes, "dropped", rule)) == count, name
        elif name.startswith("batch/masked_"):
            assert count_of(outcomes, f"compact_filter/{name.removeprefix('batch/masked_')}") == count, name
