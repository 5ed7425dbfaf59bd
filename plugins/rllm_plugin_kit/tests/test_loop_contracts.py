"""What contracts tell authors of rejections, stages, observers and trackers with one mistake each."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np
import pytest

from rllm_core.contracts import NoParams, Observer, RejectionResult, StageContext, StagePlugin, TrackedRun, TrainStep
from rllm_core.data import codec
from rllm_core.data.types import TrajectoryGroup
from rllm_plugin_kit import StageContract, TrackerContract, stage_context

from .conftest import PROCESS, later, make_plugin, vary


class Pairs:
    """Trains on the groups of two steps at a time."""

    def __init__(self, params: NoParams) -> None:
        self.kept: list[TrajectoryGroup] = []
        self.steps = 0

    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        self.steps += 1
        self.kept += groups
        if self.steps % 2:
            return RejectionResult(train=[], waiting=tuple(self.kept))
        ready, self.kept = self.kept, []
        return RejectionResult(train=ready)

    def state_dict(self) -> dict[str, Any]:
        return {"kept": [codec.group_to_json(group) for group in self.kept], "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = [codec.group_from_json(group) for group in state["kept"]]
        self.steps = state["steps"]


class ChangesGroups(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        for group in groups:
            group.metadata.clear()
        return super().__call__(groups)


class EmptiesTheList(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        result = super().__call__(list(groups))
        groups.clear()
        return result


class ChangesWhatWaits(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        result = super().__call__(groups)
        for group in result.train:
            group.metadata.clear()
        return result


class ReturnsCopies(Pairs):
    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        result = super().__call__(groups)
        return replace(result, train=[replace(group, metadata=[]) for group in result.train])


def mode(verdict: Callable[[list[TrajectoryGroup]], Any]) -> type[Pairs]:
    """Return a mode without state whose verdict is this function of the groups."""
    return vary(Pairs, __call__=lambda self, groups: verdict(groups))


def keep(self: Pairs, groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    self.kept += groups
    return list(self.kept)


def name_first(groups: list[TrajectoryGroup]) -> RejectionResult:
    """Count right and name wrong."""
    return RejectionResult(train=groups[1:], dropped={"first": groups[1:2]} if groups else {})


class SharesBatches(Pairs):
    batches: ClassVar[list[int]] = []

    def __call__(self, groups: list[TrajectoryGroup]) -> RejectionResult:
        self.batches.append(1)
        self.steps = len(self.batches)
        return super().__call__(groups)


VERDICTS = "each_group_has_exactly_one_verdict"


RESUMED = "a_resumed_run_continues_exactly"


class Stage:
    """Counts the groups of all steps."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self.groups = 0

    async def __call__(self, step: TrainStep) -> None:
        self.groups += len(step.trajectory_groups)
        step.metrics["mine/groups"] = float(self.groups)

    def state_dict(self) -> dict[str, Any]:
        return {"groups": self.groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.groups = state["groups"]


def stage(body: Callable[[TrainStep], object]) -> type[Stage]:
    """Return a stage that does this with each step."""
    return vary(Stage, __call__=later(lambda self, step: body(step)))


def setting(**values: Callable[[TrainStep], Any]) -> type[Stage]:
    """Return a stage that sets these fields of a step."""
    return stage(lambda step: [setattr(step, name, value(step)) for name, value in values.items()])


def for_trajectories(field: str, value: Any) -> type[Stage]:
    """Return a stage that sets this field of the trajectories in groups."""
    return stage(
        lambda step: [setattr(each, field, value) for group in step.trajectory_groups for each in group.trajectories]
    )


def zero_advantages(step: TrainStep) -> Any:
    batch = step.filled_batch
    return batch.with_columns(advantages=np.zeros(len(batch.tokens), np.float32))


def metric(name: str, value: Callable[[TrainStep], float]) -> type[Stage]:
    """Return a stage that adds a metric."""
    return stage(lambda step: step.metrics.update({f"mine/{name}": value(step)}))


LooksAtEpisodes = metric("episodes", lambda step: float(len(step.episodes)))


LooksAtAdvantages = metric("largest", lambda step: float(step.filled_batch.advantages.max(initial=0.0)))  # type: ignore[union-attr]


DropsGroups = setting(trajectory_groups=lambda step: step.trajectory_groups[1:])


ClipsAdvantages = setting(batch=zero_advantages)


SkipsAhead = setting(weight_version=lambda step: step.weight_version + 1)


ShapesRewards, RenamesTrajectories = for_trajectories("reward", 0.5), for_trajectories("name", "mine")


def edit_tasks(step: TrainStep) -> None:
    for task in step.tasks:
        task.data["hint"] = "none"  # type: ignore[index]


def move_episodes(step: TrainStep) -> None:
    for episode in step.episodes:
        episode.data_source = "somewhere"


class KeepsMoreThanItSays(Stage):
    def __init__(self, context: StageContext, params: NoParams) -> None:
        super().__init__(context, params)
        self.steps = 0

    async def __call__(self, step: TrainStep) -> None:
        await super().__call__(step)
        self.steps += 1
        step.metrics["mine/steps"] = float(self.steps)


class KeepsNothing:
    def __init__(self, context: StageContext, params: NoParams) -> None:
        pass

    async def __call__(self, step: TrainStep) -> None:
        step.metrics["mine/episodes"] = float(len(step.episodes))


class TakesOptionsAlone(Stage):
    def __init__(self, params: NoParams) -> None:
        pass


def stage_plugin(
    stage: type[Any], reads: str = "trajectory_groups", writes: str = "", **fields: Any
) -> StagePlugin[NoParams]:
    return StagePlugin(
        name="mine",
        summary="Mine.",
        load=lambda: stage,
        reads=frozenset(reads.split()),
        writes=frozenset(writes.split()),
        **fields,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "plugin",
    [
        stage_plugin(Stage),
        stage_plugin(DropsGroups, writes="trajectory_groups"),
        stage_plugin(ShapesRewards, writes="rewards"),
        stage_plugin(RenamesTrajectories, writes="trajectory_names"),
        stage_plugin(ClipsAdvantages, reads="batch", writes="batch.advantages"),
        stage_plugin(LooksAtAdvantages, reads="batch batch.advantages"),
        stage_plugin(SkipsAhead, writes="weights"),
        stage_plugin(KeepsNothing, reads="episodes", is_rollout_stage=True),
    ],
)
def test_a_good_stage_has_no_complaints(complaints: Any, plugin: StagePlugin[Any]) -> None:
    assert complaints(StageContract, plugin) == {}


CHANGES = "only_declared_fields_are_changed"


SUFFICIENT = "declared_reads_are_sufficient"


def test_a_stage_may_need_a_different_context(complaint: Any) -> None:
    class LooksAtTheSeed(Stage):
        def __init__(self, context: StageContext, params: NoParams) -> None:
            assert context.seed == 7

    assert "AssertionError" in complaint(StageContract, stage_plugin(LooksAtTheSeed), SUFFICIENT)
    seven = {"context": lambda self: stage_context(seed=7)}
    assert "AssertionError" not in complaint(StageContract, stage_plugin(LooksAtTheSeed), SUFFICIENT, **seven)


class Curious(Observer):
    """Looks at everything, and vetoes every other validation."""

    def __init__(self, params: NoParams) -> None:
        self.seen: list[object] = []

    def on_batch_start(self, step: TrainStep) -> None:
        self.seen.append((step.global_step, len(step.tasks)))

    def on_batch_end(self, step: TrainStep) -> None:
        self.seen.append(sum(step.metrics.values()))

    def on_validation_start(self, global_step: int) -> bool:
        self.seen.append(global_step)
        return global_step % 4 == 0


class NeedsAnUpdateInEveryStep(Curious):
    updated = -1

    def on_policy_updated(self, step: TrainStep) -> None:
        self.updated = step.global_step

    def on_batch_end(self, step: TrainStep) -> None:
        assert self.updated == step.global_step


class VetoesOnceInAProcess(Curious):
    vetoes: ClassVar[list[int]] = []

    def on_validation_start(self, global_step: int) -> bool:
        self.vetoes.append(global_step)
        return len(self.vetoes) > 1


class ScalesRewards(Curious):
    def on_policy_updated(self, step: TrainStep) -> None:
        for group in step.trajectory_groups:
            for trajectory in group.trajectories:
                trajectory.reward = 2 * (trajectory.reward or 0.0) + 1


OBSERVED, SAME_STEPS = "any_run_can_be_observed", "it_does_not_change_steps"


class Lines(Observer):
    """One JSON line per step; steps that come again are dropped."""

    def __init__(self, run: TrackedRun, params: NoParams) -> None:
        self.path = self.path_of(run)

    def path_of(self, run: TrackedRun) -> Path:
        return run.directory / "mine.jsonl"

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        kept = [line for line in read(self.path) if first_step and line[0] < first_step]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([global_step, dict(metrics)]) + "\n")

    def close(self) -> None:
        pass


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class OpensAtOnce(Lines):
    def __init__(self, run: TrackedRun, params: NoParams) -> None:
        super().__init__(run, params)
        self.path.touch()


class ClosesWhatWasNeverOpened(Lines):
    file: TextIO

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self.file = self.path.open("a")

    def close(self) -> None:
        self.file.close()


class OneFileForAll(Lines):
    shared: TextIO | None = None

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        if OneFileForAll.shared is None or OneFileForAll.shared.closed:
            OneFileForAll.shared = self.path.open("w")

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        assert OneFileForAll.shared is not None
        OneFileForAll.shared.write(json.dumps([global_step, dict(metrics)]) + "\n")

    def close(self) -> None:
        if OneFileForAll.shared is not None:
            OneFileForAll.shared.close()


class LosesWhatFollowsInAStep(Lines):
    last = -2

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        if global_step != self.last:
            super().log(global_step, metrics)
        self.last = global_step


class RoundsNumbers(Lines):
    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        super().log(global_step, {name: round(value, 1) for name, value in metrics.items()})


def logs(log: Callable[[int, Any], Any]) -> type[Lines]:
    """Return a tracker that logs in this way."""
    return vary(Lines, log=lambda self, global_step, metrics: log(global_step, metrics))


def starts(start: Callable[[Path, int], Any]) -> type[Lines]:
    """Return a tracker that starts with its file in this way."""
    return vary(Lines, on_train_start=lambda self, total_steps, first_step: start(self.path, first_step))


def rewrite(path: Path, first_step: int) -> None:
    """Keep all earlier steps, also when a run begins."""
    path.write_text("".join(json.dumps(line) + "\n" for line in read(path) if line[0] < first_step))


def check_step(global_step: int, metrics: Any) -> None:
    assert global_step >= 0


SetsVariables = starts(lambda path, _: os.environ.update(MINE=str(path)))


INSIDE = "it_writes_only_into_the_run_directory"


ANY = "any_value_and_step_can_be_logged"


def read_back(self: TrackerContract, directory: Path) -> list[Any]:
    return read(directory / "mine.jsonl")


def test_a_running_thread_is_reported(complaint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_plugin_kit.process_state.PATIENCE", 0.0)
    release = threading.Event()
    leaving = starts(lambda *_: threading.Thread(target=release.wait, daemon=True).start())
    given = {"tmp_path": tmp_path}
    said = complaint(TrackerContract, make_plugin("tracker", leaving), PROCESS, given=given)
    release.set()
    assert "leaves running threads" in said


def test_declared_changes_of_the_client_are_excused(complaint: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MINE", "before")
    excused = {"given": {"tmp_path": tmp_path}, "changes": frozenset({"environment variables"})}
    assert complaint(TrackerContract, make_plugin("tracker", SetsVariables), PROCESS, **excused) == ""


ATTRIBUTES: dict[str, dict[str, Any]] = {"tracker": {"read_back": read_back}}
MISTAKES: dict[str, list[tuple[Any, str, str]]] = {
    "rejection": [
        (
            mode(lambda groups: RejectionResult(train=[each for each in groups if len(each.trajectories) > 1])),
            VERDICTS,
            "and leaves out",
        ),
        (mode(lambda groups: RejectionResult(train=groups[:1] * len(groups))), VERDICTS, "twice: to train"),
        (
            vary(Pairs, __call__=lambda self, groups: RejectionResult(train=keep(self, groups))),
            VERDICTS,
            "which was neither",
        ),
        (mode(name_first), VERDICTS, "'first'"),
        (ReturnsCopies, VERDICTS, "to train on"),
        (ChangesWhatWaits, VERDICTS, "changed. Return the"),
        (mode(lambda groups: RejectionResult(train=groups, more=bool(groups))), VERDICTS, "Keep them waiting"),
        (mode(lambda groups: groups), VERDICTS, "rllm_core.contracts.rejection.RejectionResult"),
        (ChangesGroups, "it_does_not_change_groups", "changes the groups"),
        (EmptiesTheList, "it_does_not_change_groups", "or the list"),
        (vary(Pairs, state_dict=lambda self: {"kept": [], "steps": self.steps}), RESUMED, "codec.group_to_json"),
        (
            vary(Pairs, load_state_dict=lambda self, state: Pairs.load_state_dict(self, state | {"steps": 0})),
            RESUMED,
            "load_state_dict",
        ),
        (vary(Pairs, state_dict=lambda self: {"kept": self.kept, "steps": self.steps}), RESUMED, "has a state"),
        (SharesBatches, "same_groups_give_same_verdicts", "Keep state in"),
        (
            vary(
                Pairs,
                __call__=lambda self, groups: RejectionResult(train=[], waiting=keep(self, groups), more=True),
            ),
            "batches_per_step_are_bounded",
            "the rollout batches",
        ),
        (mode(lambda groups: RejectionResult(train=[groups[0], *groups[1:]])), "step_without", "IndexError"),
        (lambda params: lambda groups: RejectionResult(train=groups), VERDICTS, "rejection.RejectionMode"),
        (lambda: Pairs(NoParams()), VERDICTS, "`load`"),
    ],
    "stage": [
        (stage_plugin(LooksAtEpisodes), "only_declared_fields_are_read", "step.episodes"),
        (stage_plugin(LooksAtAdvantages, reads="batch"), SUFFICIENT, "AttributeError"),
        (stage_plugin(DropsGroups), CHANGES, "'trajectory_groups'"),
        (stage_plugin(ShapesRewards), CHANGES, "'episodes'"),
        (stage_plugin(ShapesRewards, writes="trajectory_groups"), CHANGES, "changes rewards of"),
        (stage_plugin(stage(edit_tasks), reads="tasks"), CHANGES, "changes tasks of"),
        (stage_plugin(stage(move_episodes), reads="episodes"), CHANGES, "changes generated of"),
        (stage_plugin(for_trajectories("uid", "x")), CHANGES, "changes tokens of"),
        (stage_plugin(stage(lambda step: step.skip("bored"))), CHANGES, "skip_reason"),
        (stage_plugin(stage(lambda step: step.timing_dict.update(mine=1.0))), CHANGES, "No stage may"),
        (stage_plugin(RenamesTrajectories), CHANGES, "trajectory_names"),
        (stage_plugin(ClipsAdvantages, reads="batch"), CHANGES, "batch.advantages"),
        (stage_plugin(setting(global_step=lambda step: step.global_step + 1)), CHANGES, "step.extras"),
        (stage_plugin(SkipsAhead), CHANGES, "'weights'"),
        (
            stage_plugin(metric("share", lambda step: 1 / len(step.trajectory_groups))),
            "empty_step",
            "ZeroDivisionError",
        ),
        (stage_plugin(metric("nan", lambda step: float("nan"))), "metrics_are_finite", "'mine/nan'"),
        (stage_plugin(vary(Stage, __call__=lambda self, step: None)), SUFFICIENT, "`async def __call__(self, step)`"),
        (stage_plugin(vary(Stage, load_state_dict=lambda self, state: None)), RESUMED, "continues differently"),
        (stage_plugin(KeepsMoreThanItSays), RESUMED, "load_state_dict"),
        (stage_plugin(vary(Stage, state_dict=lambda self: {"groups": {self.groups}})), RESUMED, "has a state"),
        (stage_plugin(Stage, is_rollout_stage=True), "rollout_stage_has_no_state", "is_rollout_stage"),
        (stage_plugin(TakesOptionsAlone), SUFFICIENT, "`load`"),
        (stage_plugin(Stage, reads="trajectory_grups"), "declared_reads_are_written", "'trajectory_groups'"),
    ],
    "observer": [
        (vary(Curious, on_batch_finished=lambda self, step: None), "methods_are_known_events", "on_batch_finished"),
        (vary(Curious, on_batch_end=later(lambda *_: None)), "methods_are_known_events", "on_batch_end"),
        # It counts from the first step, as if no run were resumed.
        (vary(Curious, on_train_start=lambda _, total, first: [0][first]), OBSERVED, "on_train_start"),
        (vary(Curious, on_train_start=lambda _, total, first: 1 / (total - first)), OBSERVED, "on_train_start"),
        (vary(Curious, on_batch_end=lambda _, step: step.filled_batch.n_rows), OBSERVED, "on_batch_end"),
        (NeedsAnUpdateInEveryStep, OBSERVED, "on_batch_end"),
        (vary(Curious, on_validation_start=lambda *_: None), "veto_is_a_bool", "on_validation_start"),
        (VetoesOnceInAProcess, "same_run_gets_same_vetoes", "votes differently in"),
        (vary(Curious, on_batch_end=lambda _, step: step.metrics.update(mine=1.0)), SAME_STEPS, "on_batch_end"),
        (ScalesRewards, SAME_STEPS, "on_policy_updated"),
        (vary(Curious, on_validation_end=lambda _, step, metrics: metrics.clear()), SAME_STEPS, "on_validation_end"),
        (vary(Curious, on_train_start=lambda *_: random.random()), PROCESS, "leaves Python's random"),
        (lambda params: object(), OBSERVED, "has not all"),
    ],
    "tracker": [
        (OpensAtOnce, "creation_does_not_change_the_run_directory", "writes into the"),
        (vary(Lines, path_of=lambda self, run: Path("mine.jsonl")), INSIDE, "mine.jsonl"),
        (vary(Lines, path_of=lambda self, run: run.directory.parent / "mine.jsonl"), INSIDE, "mine.jsonl"),
        (logs(lambda _, metrics: json.dumps(dict(metrics), allow_nan=False)), ANY, "'reward/agent/mean'"),
        (logs(check_step), ANY, "failed in log(-1, {}"),
        (logs(lambda step, metrics: metrics.update(step=step)), "it_does_not_change_metrics", "changes the metrics"),
        (ClosesWhatWasNeverOpened, "close_at_any_time_works", "AttributeError"),
        (SetsVariables, PROCESS, "leaves environment variables"),
        (OneFileForAll, "concurrent_runs_have_separate_trackers", "failed in log"),
        (LosesWhatFollowsInAStep, "logged_metrics_are_stored_with_their_step", "'val/openai/gsm8k/pass@1'"),
        (RoundsNumbers, "logged_metrics_are_stored_with_their_step", "'val/openai/gsm8k/pass@1'"),
        (starts(lambda *_: None), "a_resumed_run_has_every_step_once", "too often [(2, "),
        (starts(lambda path, _: path.unlink(True)), "a_resumed_run_has_every_step_once", "missing [(-1, "),
        (starts(rewrite), "run_from_the_start_replaces_existing_files", "too often [(-1, "),
    ],
}


@pytest.mark.parametrize(
    ("kind", "made", "test", "said"), [(kind, *row) for kind, rows in MISTAKES.items() for row in rows]
)
def test_contract_reports_the_mistake(kind: str, made: Any, test: str, said: str, reported: Any) -> None:
    assert said in reported(kind, made, test, **ATTRIBUTES.get(kind, {}))
