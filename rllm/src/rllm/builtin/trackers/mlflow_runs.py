"""The tracker `mlflow`: a run of MLflow, in a database of the run directory or on a tracking server."""

from __future__ import annotations

import logging
import os
import posixpath
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rllm_core.contracts.observer import Observer
from rllm_core.contracts.params import Params
from rllm_core.contracts.tracker import TrackedRun
from rllm_core.files import write_atomically

if TYPE_CHECKING:
    from mlflow import MlflowClient


class MlflowParams(Params):
    tracking_uri: str | None = Field(None, min_length=1)
    """Address of a tracking server, or a database such as sqlite:///mlflow.db. null: the value of the variable
    MLFLOW_TRACKING_URI, or mlflow.db in the run directory."""


ID_FILE = "mlflow_run_id"
"""File with the id under which a resumed run continues."""
DATABASE = "mlflow.db"
LARGEST_BATCH = 100
"""Maximum number of params in a request. For metrics, the limit is 1,000."""
LONGEST_VALUE = 6_000
"""Maximum number of characters of a param's value."""
LOGGERS = ("mlflow.store.db.utils", "mlflow.store.db", "alembic")
"""Loggers that print a line for each table of a new database."""


class MlflowTracker(Observer):
    """Metrics, and the config as params, over `step`, counted as everywhere.

    MLflow cannot delete metrics, so the first values of repeated steps remain.
    """

    def __init__(self, run: TrackedRun, params: MlflowParams) -> None:
        self._tracked = run
        database = f"sqlite:///{run.directory.absolute() / DATABASE}"
        self._uri = params.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or database
        self._client: MlflowClient | None = None
        self._id = ""
        self._last: dict[str, int] = {}
        """The last step of each metric that an earlier start logged."""
        self._ended = False

    def on_train_start(self, total_steps: int, first_step: int) -> None:
        self._start(resumed=first_step > 0)

    def log(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Send one batch. MLflow stores infinite numbers as the largest float."""
        from mlflow.entities import Metric

        client = self._client or self._start(resumed=False)
        now = int(time.time() * 1000)
        named = {metric_name(name): float(value) for name, value in metrics.items()}
        new = [
            Metric(name, value, now, global_step)
            for name, value in named.items()
            if global_step > self._last.get(name, -2)
        ]
        for place in range(0, len(new), LARGEST_BATCH):
            client.log_batch(self._id, metrics=new[place : place + LARGEST_BATCH])

    def on_train_end(self, global_step: int) -> None:
        self._ended = True

    def close(self) -> None:
        """End the run. It is shown as failed if an error stopped it."""
        client, self._client = self._client, None
        if client is not None:
            client.set_terminated(self._id, "FINISHED" if self._ended else "FAILED")

    def _start(self, *, resumed: bool) -> MlflowClient:
        from mlflow import MlflowClient

        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        id_file = self._tracked.directory / ID_FILE
        client = self._client = MlflowClient(tracking_uri=self._uri)
        if resumed and id_file.exists():
            self._id = id_file.read_text(encoding="utf-8").strip()
            for name in client.get_run(self._id).data.metrics:
                history = client.get_metric_history(self._id, name)
                self._last[name] = max(metric.step for metric in history)
            client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._create(client)
            write_atomically(id_file, self._id + "\n")
        return client

    def _create(self, client: MlflowClient) -> str:
        from mlflow.entities import Param

        run = self._tracked
        experiment = client.get_experiment_by_name(run.project_name)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(run.project_name)
        created: str = client.create_run(experiment_id, run_name=run.experiment_name).info.run_id
        params = [
            Param(metric_name(key), str(value)[:LONGEST_VALUE]) for key, value in _config_values(run.config) if key
        ]
        for place in range(0, len(params), LARGEST_BATCH):
            client.log_batch(created, params=params[place : place + LARGEST_BATCH])
        return created


def metric_name(name: str) -> str:
    """Return the name under which MLflow stores a metric, for example ``val/guess/pass_at_1`` for ``val/guess/pass@1``.

    MLflow allows letters, digits and ``_-. :/``, and names that are normal paths.
    """
    allowed = re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))
    return posixpath.normpath("/" + allowed).lstrip("/")


def _config_values(config: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values by dotted key. A list is one value."""
    if isinstance(config, Mapping) and config:
        for name, value in config.items():
            yield from _config_values(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, config
