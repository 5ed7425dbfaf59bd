"""The trackers `mlflow` and `trackio`, offline. The libraries' own readers read the metrics."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rllm.builtin.trackers.mlflow_runs import MlflowParams, MlflowTracker, metric_name
from rllm.builtin.trackers.trackio_runs import TrackioParams, TrackioTracker
from rllm.cli.main import main
from rllm_core.contracts.tracker import TrackedRun
from rllm_plugin_kit import TrackerContract
from rllm_record.run_files import read_metrics

Row = tuple[int, dict[str, float | None]]
# SQLAlchemy 2.1 warns about the loader of mlflow 3.17. A client has no `close`: its connections end with the process.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*noload"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the user, and no messages about the use of mlflow."""
    for name in ("MLFLOW_TRACKING_URI", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    if "trackio" not in sys.modules:  # it reads this once
        monkeypatch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))


def mlflow_rows(directory: Path, uri: str | None = None) -> list[Row]:
    """Read the metrics of a run, with infinite numbers instead of the largest float."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri or f"sqlite:///{directory / 'mlflow.db'}")
    run = client.get_run((directory / "mlflow_run_id").read_text().strip())
    return [
        (metric.step, {name.replace("_at_", "@"): metric.value * (2 if abs(metric.value) > 1e308 else 1)})
        for name in run.data.metrics
        for metric in client.get_metric_history(run.info.run_id, name)
    ]


def trackio_rows(directory: Path) -> list[Row]:
    """Read the metrics of a run."""
    from trackio import Api
    from trackio.sqlite_storage import SQLiteStorage

    identity = (directory / "trackio_run_id").read_text().strip()
    (run,) = [run for project in SQLiteStorage.get_projects() for run in Api().runs(project) if run.id == identity]
    rows = SQLiteStorage.get_logs(run.project, run.name, run_id=run.id)
    return [(row.pop("step"), {k: v for k, v in row.items() if k not in ("timestamp", "step")}) for row in rows]


class TestMlflow(TrackerContract):
    name = "rllm/mlflow"
    # mlflow adds itself to the environment for its worker processes, and its loggers have handlers.
    changes = frozenset({"environment variables", "loggers", "running threads"})

    def read_back(self, directory: Path) -> Sequence[Row]:
        return mlflow_rows(directory)


class TestTrackio(TrackerContract):
    name = "rllm/trackio"

    def read_back(self, directory: Path) -> Sequence[Row]:
        return trackio_rows(directory)


@pytest.mark.parametrize(("tracker", "rows"), [("mlflow", mlflow_rows), ("trackio", trackio_rows)])
def test_training_and_its_resume_log_each_metric_once(
    tracker: str, rows: Callable[[Path], list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "guess", f"rllm.trainer.logger=[{tracker}]", "rllm.trainer.experiment_name=one"]
    assert main([*words, "rllm.trainer.total_batches=3", "rllm.trainer.save_freq=2"]) == 0
    directory = tmp_path / "runs/rllm-training/one"
    identity = (directory / f"{tracker}_run_id").read_text()
    assert main([*words, "rllm.trainer.total_batches=5", "rllm.trainer.save_freq=2", "--resume"]) == 0

    assert (directory / f"{tracker}_run_id").read_text() == identity
    read = [(step, name, value) for step, row in rows(directory) for name, value in row.items()]
    logged = [
        (line["step"], name, value)
        for line in read_metrics(directory)
        for name, value in line.items()
        if name != "step"
    ]
    assert len({(step, name) for step, name, _ in read}) == len(read)
    assert {each for each in logged if each[2] is not None and math.isfinite(each[2])} <= {*read}
    assert {(step, name) for step, name, _ in read} == {(step, name) for step, name, _ in logged}


def test_mlflow_stores_config_and_outcome(run: TrackedRun) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{run.directory.parent / 'shared.db'}"
    for ended in (False, True):
        tracker = MlflowTracker(run, MlflowParams(tracking_uri=uri))
        tracker.on_train_start(2, 0)
        tracker.log(0, {"reward": 0.5})
        if ended:
            tracker.on_train_end(1)
        tracker.close()

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("numbers")
    last, first = client.search_runs([experiment.experiment_id], order_by=["start_time DESC"])
    assert (first.info.status, last.info.status) == ("FAILED", "FINISHED")
    assert last.info.run_name == "first"
    assert last.data.params["rllm.rollout.n"] == "8"
    assert not (run.directory / "mlflow.db").exists()


def test_mlflow_names_are_valid_and_different() -> None:
    from mlflow.utils.validation import _validate_metric_name

    names = ["val/guess/pass@1", "val/../x", "/a//b", "ünï/x+y", "batch/solved", "a.b: c-d"]
    for name in names:
        _validate_metric_name(metric_name(name))
    assert len({metric_name(name) for name in names}) == len(names)
    assert metric_name("val/guess/pass@1") == "val/guess/pass_at_1"


def test_trackio_continues_only_its_own_run(run: TrackedRun, capfd: pytest.CaptureFixture[str]) -> None:
    def start(first_step: int) -> str:
        tracker = TrackioTracker(run, TrackioParams())
        tracker.on_train_start(4, first_step)
        tracker.log(first_step, {"reward": 0.5})
        tracker.close()
        return (run.directory / "trackio_run_id").read_text()

    first = start(0)
    assert start(1) == first
    (run.directory / "trackio_run_id").write_text("a run of a different directory")
    second = start(2)
    assert second != first
    assert [step for step, _ in trackio_rows(run.directory)] == [2]
    assert capfd.readouterr().out == ""


@pytest.fixture(autouse=True)
def no_open_files() -> Iterator[None]:
    """Close the databases of mlflow's stores."""
    yield
    if stores := sys.modules.get("mlflow.tracking._tracking_service.utils"):
        stores._tracking_store_registry._get_store_with_resolved_uri.cache_clear()
