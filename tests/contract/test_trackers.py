"""Every tracker of this repository keeps the contract of trackers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from rllm_plugin_kit import TrackerContract

Kept = Sequence[tuple[int, Mapping[str, float | None]]]


class TestConsole(TrackerContract):
    name = "rllm/console"


class TestReport(TrackerContract):
    name = "rllm-view/report"


class TestRecord(TrackerContract):
    name = "rllm-record/record"
    options = ({}, {"record": "tokens"}, {"record": "off"})


class TestTensorboard(TrackerContract):
    name = "rllm/tensorboard"
    options = ({}, {"directory": "board"})

    def read_back(self, directory: Path) -> Kept:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        (events,) = [path for name in ("tensorboard", "board") if (path := directory / name).exists()]
        read = EventAccumulator(str(events)).Reload()
        return [(event.step, {tag: event.value}) for tag in read.Tags()["scalars"] for event in read.Scalars(tag)]


@pytest.mark.long
class TestWandb(TrackerContract):
    name = "rllm/wandb"
    options = ({"mode": "offline"},)
    # Its client serves all runs of a process, and replaces functions permanently.
    changes = frozenset({"environment variables", "sys.exit", "sys.excepthook", "running threads"})

    @pytest.fixture(autouse=True)
    @staticmethod
    def no_account(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Isolate its client, which reads settings and keys of the user, and starts a process."""
        import wandb

        monkeypatch.setattr(sys, "exit", sys.exit)
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        before = dict(os.environ)
        home = tmp_path_factory.mktemp("home")
        for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
            monkeypatch.setenv(name, str(home))
        yield
        wandb.teardown()
        for name in set(os.environ) - set(before):
            del os.environ[name]
