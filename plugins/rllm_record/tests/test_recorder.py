"""The tracker `record` writes the rollouts of a run, step by step."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, Step, Task, TerminationReason, Trajectory
from rllm_record.steps import RecordError, StepFiles
from rllm_record.tracker import RecordParams, make_recorder

from .steps.made_steps import group, rollout, step

CONFIG = {"rllm": {"backend": "local"}, "data": {"max_response_length": 8}, "sampling": {"train": {"temperature": 0.5}}}


def recorder(directory: Path, **options: Any) -> Any:
    run = TrackedRun(directory=directory, project_name="numbers", experiment_name="first", config=CONFIG)
    return make_recorder(run, RecordParams(**options))


def record_steps(watching: Any, *steps: TrainStep, first: int = 0) -> None:
    assert isinstance(watching, Observer)
    watching.on_train_start(10, first)
    for made in steps:
        watching.on_batch_start(made)
        watching.on_batch_end(made)
        watching.log(made.global_step, {})
    watching.close()


def test_every_step_is_recorded(tmp_path: Path) -> None:
    a, b = rollout("t:0"), rollout("t:0")
    record_steps(recorder(tmp_path), step(0, [a], [group("t:agent", a)]), step(1, [b], []))

    files = StepFiles(tmp_path / "record")
    assert files.steps() == [0, 1]
    assert [each.outcome.outcome for number in (0, 1) for each in files.outcomes(number)] == ["trained", "dropped"]
    assert files.episode_table(0)["task"].to_pylist() == [None]


def test_record_tokens_stores_text_and_tokens(tmp_path: Path) -> None:
    made = step(0, [rollout("t:0")], [], tasks=[Task(id="t", data={"number": 7})])
    record_steps(recorder(tmp_path, record="tokens"), made)

    (generated,) = StepFiles(tmp_path / "record").episodes(0)
    assert generated.episode.trajectories[0].steps[0].text == "three four"
    assert generated.task == {"number": 7}


def test_recorder_checkpoint_waits_for_files_in_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching, go_on, real = recorder(tmp_path), Event(), StepFiles.write_tables

    def write_later(*arguments: Any) -> None:
        go_on.wait(60)
        real(*arguments)

    monkeypatch.setattr(StepFiles, "write_tables", write_later)
    watching.on_train_start(10, 0)
    watching.on_batch_end(step(0, [], []))
    files = StepFiles(tmp_path / "record")
    assert files.steps() == []
    go_on.set()
    assert watching.state_dict() == {}
    assert files.steps() == [0]
    watching.close()


def test_recorder_failed_write_is_raised_before_checkpoint(tmp_path: Path) -> None:
    watching = recorder(tmp_path)
    watching.on_train_start(10, 0)
    (tmp_path / "record").write_text("a file")
    watching.on_batch_end(step(0, [], []))

    with expect_error(RecordError, "not-writable", "Step 0 cannot"):
        watching.state_dict()
    watching.close()


class Letters:
    """Token 1 is ``b``."""

    def token_texts(self, token_ids: Any) -> list[str]:
        return [chr(97 + int(token)) for token in token_ids]


def text_step(number: int, *ids: int) -> TrainStep:
    """Return a step in which the model samples tokens after a prompt of the token 0."""
    trajectory = Trajectory("agent", [Step([0], ids)], 1.0)
    episode = Episode(id="t:0", trajectories=[trajectory], termination_reason=TerminationReason.ENV_DONE)
    renderer: Any = Letters()
    return step(number, [episode], [], renderer=renderer)


def test_each_token_has_its_text_once(tmp_path: Path) -> None:
    record_steps(recorder(tmp_path, record="tokens"), text_step(0, 1, 5), text_step(1, 5, 2), text_step(2, 7))
    record_steps(recorder(tmp_path, record="tokens"), text_step(2, 2, 9), first=2)

    files = StepFiles(tmp_path / "record")
    assert files.vocabulary(0) == {0: "a", 1: "b", 5: "f"}
    assert files.vocabulary(1) == {0: "a", 1: "b", 2: "c", 5: "f"}
    assert files.vocabulary(2) == {0: "a", 1: "b", 2: "c", 5: "f", 9: "j"}


def test_record_off_stores_nothing(tmp_path: Path) -> None:
    watching = recorder(tmp_path, record="off")
    watching.log(0, {})
    watching.close()

    assert not isinstance(watching, Observer)
    assert list(tmp_path.iterdir()) == []
    for value in ("all", None, True):
        with pytest.raises(ValueError, match="'off', 'outcomes' or 'tokens'"):
            recorder(tmp_path, record=value)


def test_resume_drops_repeated_steps_keeps_waiting_groups(tmp_path: Path) -> None:
    a = rollout("t:0")
    waiting = group("t:agent", a)
    first = step(0, [a], [])
    first.decide("waiting", "reject/waiting", a.trajectories, waiting)
    record_steps(recorder(tmp_path), first, step(1, [], []), step(2, [], []))

    record_steps(recorder(tmp_path), step(1, [], [group("t:agent", rollout("t:0"))]), first=1)

    files = StepFiles(tmp_path / "record")
    assert files.steps() == [0, 1]
    assert [(each.outcome.trajectory, each.outcome.outcome) for each in files.outcomes(1)] == [("0.0:t:0/0", "trained")]
