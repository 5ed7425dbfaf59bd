"""The trackers that are installed: chosen by name, several at once, and what is said when a package is missing."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.runs.run_directory import WRITTEN, RunDirectory
from rllm.tracking.fan_out import Trackers
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry


def _choose(*choices: str | dict[str, Any]) -> list[PluginChoice[Any]]:
    registry = Registry.load(allow=["rllm"], environ={})
    return [choose(registry, "tracker", choice, f"rllm.trainer.logger[{i}]") for i, choice in enumerate(choices)]


def test_a_tracker_without_files_leaves_the_others(directory: RunDirectory, run: TrackedRun) -> None:
    warnings: list[str] = []
    (run.directory / "tensorboard").write_text("in the way")
    chosen = _choose("console", "tensorboard", {"name": "tensorboard", "directory": "more/events"})
    trackers = Trackers(chosen, directory, run, warnings.append)
    trackers.tell("on_train_start", 2, 0)
    for step in range(2):
        trackers.log(step, {"reward/agent/mean": step / 2})
    trackers.close()
    assert len(warnings) == 1
    check_values(warnings[0], "'tensorboard'", "FileExistsError: ")
    assert len(list((run.directory / "more" / "events").iterdir())) == 1
    assert len(directory.history()) == 2


@pytest.mark.parametrize(("tracker", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_missing_package_is_named(
    tracker: str, package: str, directory: RunDirectory, run: TrackedRun, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    module = {"wandb": "weights_and_biases"}.get(tracker, tracker)
    monkeypatch.delitem(sys.modules, f"rllm.trackers.{module}", raising=False)
    importlib.import_module(f"rllm.trackers.{module}")  # It can be imported without its package.
    with expect_error(PluginError, "missing-package", repr(tracker), package, f"pip install 'rllm[{tracker}]'"):
        Trackers(_choose(tracker), directory, run, lambda warning: None)


def test_a_package_may_lack_another(directory: RunDirectory, run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'google.protobuf'", name="google.protobuf")

    monkeypatch.setattr("rllm.trackers.packages.import_module", broken)
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
