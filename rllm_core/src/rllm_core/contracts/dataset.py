"""Datasets: where tasks come from when it is not the environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from typing import Any

    from rllm_core.data.types import Task


class Dataset(Protocol):
    """Returns all tasks in a fixed order. Called once before a run starts; a resumed run must be given the same.

    `rllm_core.data.tasks.LazyTasks` reads rows when they are played.
    """

    def __call__(self, params: Any, /) -> Sequence[Task]: ...


@dataclass(frozen=True, kw_only=True)
class DatasetPlugin(Plugin[ParamsT]):
    """Offers a dataset. Chosen by ``data.train_dataset`` and ``data.val_dataset``, each with options of its own."""

    kind: ClassVar[str] = "dataset"

    load: Callable[[], Dataset]
    suffixes: frozenset[str] = frozenset()
    """Endings of files that it reads, such as ``.parquet``: a file of that ending, written in place of a name, chooses
    it, with the file as its option ``path``."""
    is_remote: Callable[[Any], bool] | None = None
    """Takes the options and says whether its rows come over a network; ``--dry-run`` then reads none. None: never."""
