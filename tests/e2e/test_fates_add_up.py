"""Each trajectory has one fate in each step, and the fates add up to the metrics: every rejection mode with every mask
and filter, across a resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.train_step import TrainStep
from rllm_core.contracts.workflow import Workflow, WorkflowPlugin
from rllm_core.data.types import Episode, Task, TerminationReason, Trajectory
from rllm_core.plugins.registry import Registry
from rllm_core.rollout.conversation import Conversation
from rllm_core.runs.run_folder import RunFolder
from rllm_core.training.loop import TrainingLoop
from rllm_record.steps import RecordedFate, StepFiles

TASKS = [Task(id=f"t{number}", data={"number": number}) for number in range(6)]
STOPPED_AFTER, STEPS = 3, 5
ENDINGS = [*TerminationReason]
MODES: dict[str, dict[str, Any]] = {
    "none": {},
    "group": {"mode": "group", "min_trajs_per_group": 3},
    "episode": {"mode": "episode", "min_partial_solve_tasks": 4},
    "dynamic": {"mode": "dynamic", "max_gen_batches": 3},
}
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "overlong": {"rllm.agent.overlong_filter": True},
    "truncated": {"rllm.mask_truncated_samples": True},
    "truncated and overlong": {"rllm.mask_truncated_samples": True, "rllm.agent.overlong_filter": True},
    **{
        f"mask_{chosen.value}": {
            "rllm.compact_filtering.enable": True,
            **{f"rllm.compact_filtering.mask_{each.value}": each is chosen for each in ENDINGS},
        }
        for chosen in ENDINGS
    },
    "missing rewards": {"rllm.algorithm.on_missing_reward": "drop"},
    "zero rewards": {"rllm.algorithm.on_missing_reward": "zero"},
    "silent attempts": {},
}


class Mixed(Workflow):
    """One reply. Ending, reward and whether it is right are made of the task and the reply, and differ in a group."""

    without_rewards = silent = False

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        trajectory = Trajectory("agent", uid=uid)
        conversation = Conversation(self.context, trajectory, uid)
        conversation.hear("say")
        step = await conversation.reply()
        await conversation.close()
        luck = 3 * task["number"] + int(step.response_ids.sum()) + int(uid.rpartition(":")[2])
        trajectory.reward = None if self.without_rewards and luck % 4 == 0 else float(luck % 3)
        if self.silent and luck % 3 == 0:
            trajectory.steps[:] = []
        return Episode(
            id=uid,
            trajectories=[trajectory],
            is_correct=luck % 2 == 0,
            termination_reason=ENDINGS[luck % len(ENDINGS)],
        )


@dataclass
class Watching(Observer):
    """The steps of a run; ends it after one of them."""

    last: int
    steps: list[TrainStep] = field(default_factory=list)
    stop: Callable[[], None] = lambda: None

    def on_batch_end(self, step: TrainStep) -> None:
        self.steps.append(step)
        if len(self.steps) == self.last:
            self.stop()


Play = Callable[[Mapping[str, Any], type[Mixed]], tuple[Path, list[TrainStep]]]


@pytest.fixture
def play(planned: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Folder and steps of a run that was stopped on the way, and resumed."""
    monkeypatch.chdir(tmp_path)

    def run(settings: Mapping[str, Any], workflow: type[Mixed]) -> tuple[Path, list[TrainStep]]:
        registry = Registry.load()
        registry.add(
            WorkflowPlugin(
                name="mixed", summary="For tests.", params=NoParams, load=lambda: workflow, gives_rewards=True
            )
        )
        plan = planned(dict(settings), registry)
        steps: list[TrainStep] = []
        for resume, last in ((False, STOPPED_AFTER), (True, STEPS)):
            folder = RunFolder.open(plan.config.rllm.trainer, resume=resume)
            watching = Watching(last)
            try:
                loop = TrainingLoop(
                    plan, folder, train_tasks=TASKS, val_tasks=[], observers=[watching], resume=resume, warn=str
                )
                watching.stop = loop.stop
                loop.fit()
            finally:
                folder.close()
            steps += watching.steps
        return folder.path, steps

    return run


def settings_of(mode: str, chosen: str) -> dict[str, Any]:
    rejection = {f"rllm.rejection_sample.{name}": value for name, value in MODES[mode].items()}
    return {
        "rllm.workflow.name": "mixed",
        "rllm.rollout.n": 4,
        "rllm.trainer.total_batches": STEPS,
        "rllm.trainer.val_before_train": False,
        "rllm.trainer.test_freq": -1,
        "rllm.trainer.output_dir": "runs",
        "data.train_dataset": {"name": "jsonl", "path": "none.jsonl"},
        "data.train_batch_size": 2,
        "data.max_response_length": 6,
        **({"rllm.rejection_sample.enable": True, **rejection} if rejection else {}),
        **FILTERS[chosen],
    }


def workflow_of(chosen: str) -> type[Mixed]:
    class Chosen(Mixed):
        without_rewards = chosen.endswith("rewards")
        silent = chosen == "silent attempts"

    return Chosen


def groups_of(fates: list[RecordedFate], fate: str, rule: str = "") -> int:
    """How many groups have this fate by this rule."""
    chosen = [each.fate for each in fates if each.fate.fate == fate and each.fate.rule.startswith(rule)]
    return len({(each.group, frozenset((each.trajectory, *each.peers))) for each in chosen})


def count_of(fates: list[RecordedFate], rule: str) -> int:
    return sum(each.fate.rule == rule for each in fates)


@pytest.mark.parametrize("chosen", FILTERS)
@pytest.mark.parametrize("mode", MODES)
def test_fates_add_up_to_the_metrics(play: Play, mode: str, chosen: str) -> None:
    folder, steps = play(settings_of(mode, chosen), workflow_of(chosen))

    assert [step.global_step for step in steps] == list(range(STEPS))
    files, waited = StepFiles(folder / "record"), set[str]()
    for step in steps:
        fates = files.fates(step.global_step)
        uids = [each.fate.trajectory for each in fates]
        played = files.episode_table(step.global_step).to_pylist()
        assert len(uids) == len(set(uids))
        assert set(uids) == waited | {each["uid"] for episode in played for each in episode["trajectories"]}
        assert not {each.fate.rule for each in fates if each.fate.rule == "unexplained"}
        assert_sums(fates, step.metrics)
        waited = {each.fate.trajectory for each in fates if each.fate.fate == "waiting"}


def assert_sums(fates: list[RecordedFate], metrics: Mapping[str, float]) -> None:
    assert groups_of(fates, "waiting") == metrics["batch/groups_waiting"]
    left = groups_of(fates, "trained") + emptied(fates)
    skipped = metrics.get("batch/skipped_no_sampled_tokens", 0.0)
    assert skipped or left == metrics["batch/groups_after_filter"]
    assert count_of(fates, "group/ungrouped") == metrics.get("batch/trajectories_ungrouped", 0)
    lost = metrics.get("batch/missing_rewards", 0)
    assert count_of(fates, "check_rewards/missing_reward") in (0, lost)
    for name, count in metrics.items():
        if name.startswith("batch/groups_dropped_"):
            assert groups_of(fates, "dropped", f"reject/{name.removeprefix('batch/groups_dropped_')}") == count, name
        elif name.startswith("batch/masked_"):
            assert count_of(fates, f"compact_filter/{name.removeprefix('batch/masked_')}") == count, name


def emptied(fates: list[RecordedFate]) -> int:
    """Groups of which no trajectory has a token to train on."""
    trained = {each.fate.group for each in fates if each.fate.fate == "trained"}
    silent = {each.fate.group for each in fates if each.fate.rule == "build_batch/no_sampled_tokens"}
    return len(silent - trained)
