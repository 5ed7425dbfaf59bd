"""The contract of datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.data.types import Task
from rllm_core.errors import RllmError
from rllm_plugin_kit.plugin import PluginContract
from rllm_plugin_kit.task_checks import check_ids, check_json, check_same_every_time, read_some_tasks


class DatasetContract(PluginContract[DatasetPlugin[Any]]):
    """Contract of every dataset. The tests read the dataset's tasks with each mapping in `options`."""

    kind = "dataset"
    bad_options: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Invalid options, for example a missing file. The dataset must reject each of them before a run starts."""

    def test_it_has_tasks(self, params: Any) -> None:
        if not self._tasks(params):
            raise self.failure("has no task", "Raise ConfigError if it has no tasks, because a run needs at least one.")

    def test_tasks_are_the_same_every_time(self, params: Any) -> None:
        check_same_every_time(lambda: self._tasks(params), self.failure)

    def test_tasks_have_different_ids(self, params: Any) -> None:
        check_ids(self._tasks(params), self.failure)

    def test_task_data_is_json(self, params: Any) -> None:
        check_json(self._tasks(params), self.failure)

    def test_tasks_do_not_share_their_data(self, params: Any) -> None:
        """A rollout may note something in what it is given."""
        owners: dict[int, Task] = {}
        for task in self._tasks(params):
            other = owners.setdefault(id(task.data), task)
            if other is not task:
                raise self.failure(
                    f"has one mapping as the data of tasks {other.id!r} and {task.id!r}",
                    "Make a mapping for every task.",
                )

    def test_bad_options_are_rejected_with_a_reason(self) -> None:
        if not self.bad_options:
            pytest.skip("`bad_options` is empty")
        for options in self.bad_options:
            try:
                tasks = self.load_plugin()(self.params_from(options))
            except RllmError:
                continue
            except Exception as error:
                raise self.failure(
                    f"fails with the options {dict(options)!r}: {type(error).__name__}: {error}",
                    "Raise rllm_core.errors.ConfigError(code, what is wrong, what to do).",
                ) from error
            raise self.failure(
                f"takes the options {dict(options)!r}, and has {len(tasks)} tasks",
                "Reject invalid options with the types and limits of its params, or raise ConfigError.",
            )

    def test_process_wide_state_is_unchanged(self, params: Any) -> None:
        self.check_process_state(lambda: self._tasks(params), "Draw from its own generator, and restore the rest.")

    def _tasks(self, params: Any) -> list[Task]:
        with self.explain_errors(
            "cannot list its tasks",
            "The contract calls the result of `load` with the options, as a run does once at its start.",
        ):
            tasks = self.load_plugin()(params)
        return read_some_tasks(tasks, self.failure)
