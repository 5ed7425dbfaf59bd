"""The tracker `tensorboard`, the trajectories that trackers show, and the choice of installed trackers."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm.builtin.trackers import tensorboard
from rllm.builtin.trackers.episode_table import MAX_CHARACTERS, EpisodeTableParams, as_markdown, table_rows
from rllm.builtin.trackers.tensorboard import TensorboardParams, TensorboardTracker
from rllm.builtin.trackers.weights_and_biases import WeightsAndBiasesParams
from rllm.runs.run_directory import WRITTEN, RunDirectory
from rllm.tracking.tracker_group import Trackers
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.contracts.train_step import TrainStep
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry

Write = Callable[..., None]


@pytest.fixture
def write(run: TrackedRun) -> Write:
    """One start of a run: logs `steps`, each with the metric `value`."""

    def write(steps: range, first_step: int, value: float = 0.0) -> None:
        tracker = TensorboardTracker(run, TensorboardParams())
        tracker.on_train_start(10, first_step)
        for step in steps:
            tracker.log(step, {"value": value})
        tracker.close()

    return write


def _read(directory: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(directory)).Reload()


def _scalars(directory: Path, tag: str = "value") -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in _read(directory).Scalars(tag)]


def _texts(directory: Path, tag: str) -> list[tuple[int, str]]:
    # The reader that TensorBoard itself uses for what is no number.
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory)).Reload().Tensors(f"{tag}/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in events]


def test_metrics_are_scalars_and_the_config_is_text(run: TrackedRun) -> None:
    tracker = TensorboardTracker(run, TensorboardParams())
    tracker.on_train_start(2, 0)
    tracker.log(-1, {"val/openai/gsm8k/pass@1": 0.25})
    tracker.log(0, {"reward/agent/mean": 0.5, "inf": math.inf, "nan": math.nan, "too large for 32 bits": -1e300})
    tracker.log(1, {"reward/agent/mean": 1.0})
    tracker.close()
    directory = run.directory / "tensorboard"
    assert _scalars(directory, "val/openai/gsm8k/pass@1") == [(-1, 0.25)]
    assert _scalars(directory, "reward/agent/mean") == [(0, 0.5), (1, 1.0)]
    assert math.isnan(_scalars(directory, "nan")[0][1])
    assert _scalars(directory, "inf") == [(0, math.inf)]
    assert _scalars(directory, "too large for 32 bits") == [(0, -math.inf)]
    ((step, text),) = _texts(directory, "config")
    assert step == 0
    assert text.startswith("```yaml\nrllm:\n  rollout:\n    n: 8\n")
    assert text.endswith("data: null\n```")


def test_every_start_writes_config_to_a_separate_file(run: TrackedRun, write: Write) -> None:
    for first_step in (0, 1, 4):
        write(range(first_step, first_step + 3), first_step, value=float(first_step))
    directory = run.directory / "tensorboard"
    assert len(list(directory.iterdir())) == 3
    assert _scalars(directory) == [(0, 0.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 4.0), (5, 4.0), (6, 4.0)]
    assert [step for step, _ in _texts(directory, "config")] == [0, 1, 4]
    write(range(-1, 1), 0)
    assert [step for step, _ in _texts(directory, "config")] == [0]


def test_steps_are_on_disk_within_a_second(run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboardX.event_file_writer import EventsWriter

    now, flushes = [100.0], []
    monkeypatch.setattr(tensorboard.time, "monotonic", lambda: now[0])
    flush = EventsWriter.flush
    monkeypatch.setattr(EventsWriter, "flush", lambda writer: (flushes.append(now[0]), flush(writer)))
    tracker = TensorboardTracker(run, TensorboardParams())
    tracker.on_train_start(10, 0)
    for step in range(5):
        tracker.log(step, {"value": float(step)})
        now[0] += 0.5
    assert flushes == [100.0, 100.0, 101.0, 102.0]
    assert [step for step, _ in _scalars(run.directory / "tensorboard")] == [0, 1, 2, 3, 4]
    tracker.close()


def test_directory_may_be_anywhere(run: TrackedRun, tmp_path: Path) -> None:
    for directory in ("board", str(tmp_path / "board")):
        tracker = TensorboardTracker(run, TensorboardParams(directory=directory))
        tracker.log(0, {"value": 1.0})
        tracker.close()
    assert _scalars(run.directory / "board") == _scalars(tmp_path / "board") == [(0, 1.0)]
    assert not (run.directory / "tensorboard").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error_at_once(run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a thread that dies, and a training that waits for it."""
    tracker = TensorboardTracker(run, TensorboardParams())
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr("tensorboardX.record_writer.open_file", lambda path: full)
        with pytest.raises(OSError, match="No space left"):
            tracker.on_train_start(10, 0)


def test_a_few_trajectories_are_a_text(run: TrackedRun, make_step: Callable[..., TrainStep]) -> None:
    tracker = TensorboardTracker(run, TensorboardParams(episodes=2, episodes_every=2))
    tracker.on_train_start(3, 0)
    for number in range(3):
        tracker.on_batch_end(make_step(number, 0.5, 0.0, 1.0))
    tracker.close()

    texts = _texts(run.directory / "tensorboard", "episodes")

    assert [step for step, _ in texts] == [0, 2]
    assert [line.split(" | ")[2] for line in texts[0][1].splitlines()] == ["reward", "---", "0.0", "1.0"]


MakeStep = Callable[..., TrainStep]


@pytest.mark.parametrize(
    ("count", "rewards"),
    [(0, []), (1, [None]), (2, [None, 4.0]), (3, [None, 2.0, 4.0]), (9, [None, 1.0, 2.0, 3.0, 4.0])],
)
def test_rewards_are_spread_over_their_range(make_step: MakeStep, count: int, rewards: list[float | None]) -> None:
    rows = table_rows(make_step(0, 3.0, 1.0, None, 4.0, 2.0), EpisodeTableParams(episodes=count))
    assert [row[2] for row in rows] == rewards


def test_steps_between_show_none(make_step: MakeStep) -> None:
    params = EpisodeTableParams(episodes_every=3)
    assert [len(table_rows(make_step(number, 1.0), params)) for number in range(4)] == [1, 0, 0, 1]


def test_a_row_has_the_whole_conversation(make_step: MakeStep) -> None:
    (row,) = table_rows(make_step(0, 1.0), EpisodeTableParams())
    assert row == ("t:0", "agent", 1.0, False, "env_done", "[user] a|b\n[response] <b>1.0</b>")


def test_a_long_conversation_is_cut_in_its_middle(make_step: MakeStep) -> None:
    step = make_step(0, 1.0)
    step.generated[0].trajectories[0].steps[0].text = "x" * 9000 + "end"
    ((*_, text),) = table_rows(step, EpisodeTableParams())
    assert len(text) == MAX_CHARACTERS + len("\n…\n")
    assert (text.startswith("[user] a|b"), text.endswith("end")) == (True, True)


def test_texts_stay_in_their_cells(make_step: MakeStep) -> None:
    lines = as_markdown(table_rows(make_step(0, 1.0), EpisodeTableParams())).splitlines()
    shown = "[user] a&#124;b<br>[response] &lt;b&gt;1.0&lt;/b&gt;"
    assert lines[2:] == [f"| t:0 | agent | 1.0 | False | env_done | {shown} |"]


def test_no_text_is_sent_away_unless_asked_for(make_step: MakeStep) -> None:
    assert (
        table_rows(make_step(0, 1.0), WeightsAndBiasesParams()) == table_rows(make_step(0), EpisodeTableParams()) == []
    )


def _choose(*choices: str | dict[str, Any]) -> list[PluginChoice[Any]]:
    registry = Registry.load(allow=["rllm"], environ={})
    return [choose(registry, "tracker", choice, f"rllm.trainer.logger[{i}]") for i, choice in enumerate(choices)]


@pytest.mark.parametrize(("tracker", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_is_named(
    tracker: str, package: str, directory: RunDirectory, run: TrackedRun, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    module = {"wandb": "weights_and_biases"}.get(tracker, tracker)
    monkeypatch.delitem(sys.modules, f"rllm.builtin.trackers.{module}", raising=False)
    importlib.import_module(f"rllm.builtin.trackers.{module}")  # It can be imported without its package.
    with expect_error(PluginError, "missing-package", repr(tracker), package, f"pip install 'rllm[{tracker}]'"):
        Trackers(_choose(tracker), directory, run, lambda warning: None)


def test_a_package_may_lack_another(directory: RunDirectory, run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'google.protobuf'", name="google.protobuf")

    monkeypatch.setattr("rllm.builtin.trackers.plugin.import_module", broken)
    with expect_error(PluginError, "plugin-not-loadable", "'google.protobuf'"):
        Trackers(_choose("tensorboard"), directory, run, lambda warning: None)


@pytest.mark.parametrize(
    "choice",
    [
        {"name": "wandb", "mode": "sometimes"},
        {"name": "wandb", "project": "elsewhere"},
        {"name": "tensorboard", "directory": ""},
        {"name": "tensorboard", "directory": 3},
    ],
)
def test_unknown_options_of_trackers_are_errors(choice: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"rllm.trainer.logger\[0\]"):
        _choose(choice)


@pytest.mark.parametrize("path", [*sorted({*WRITTEN, ".lock"}), "checkpoints/x", "./metrics.jsonl", "a/../episodes"])
def test_tensorboard_may_not_write_the_run_s_files(path: str) -> None:
    choice = {"name": "tensorboard", "directory": path}
    if path == "tensorboard":
        _choose(choice)
        return
    first = {"./metrics.jsonl": "metrics.jsonl", "a/../episodes": "episodes"}.get(path, path.split("/")[0])
    with expect_error(ConfigError, "wrong-value", "rllm.trainer.logger[1].directory", path, f" {first} "):
        _choose("console", choice)


@pytest.mark.parametrize("path", ["mine", "deep/metrics.jsonl", "../metrics.jsonl", "/elsewhere/metrics.jsonl"])
def test_tensorboard_may_write_anywhere_else(path: str) -> None:
    (chosen,) = _choose({"name": "tensorboard", "directory": path})
    assert chosen.params.directory == path
