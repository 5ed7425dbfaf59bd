"""Datasets: sources of tasks that do not belong to an environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from typing import Any

    from rllm_core.data.types import Task


class Dataset(Protocol):
    """Returns all tasks in a fixed order. It is called once before a run starts. A resumed run must receive the same
    tasks.

    Use `rllm_core.data.tasks.LazyTasks` to read rows only when they are needed.
    """

    def __call__(self, params: Any, /) -> Sequence[Task]: ...


@dataclass(frozen=True, kw_only=True)
class DatasetPlugin(Plugin[ParamsT]):
    """A plugin spec that offers a dataset. Users choose it with ``data.train_dataset`` and ``data.val_dataset``.

    Each of the two choices has its own options.

    Workflows and the environment's `reset` receive the `data` of a task::

        from rllm_core.contracts import DatasetPlugin, Params
        from rllm_core.plugins import hookimpl

        class ProductsParams(Params):
            first: int = 2
            last: int = 99

        def load_products():
            from rllm_core.data.types import Task        # imported only here, because it needs numpy

            def products(params):
                numbers = range(params.first, params.last + 1)
                return [Task(id=f"{a}x{b}", data={"a": a, "b": b}) for a in numbers for b in numbers]

            return products

        @hookimpl
        def rllm_datasets():
            yield DatasetPlugin(
                name="products",
                summary="Two numbers to multiply.",
                load_params=lambda: ProductsParams,
                load=load_products,
            )
    """

    kind: ClassVar[str] = "dataset"

    load: Callable[[], Dataset]
    suffixes: frozenset[str] = frozenset()
    """Suffixes of files that the dataset reads, such as ``.parquet``. If the user writes a file with this suffix
    instead of a name, this dataset is chosen and its option ``path`` is the file."""
    is_remote: Callable[[Any], bool] | None = None
    """Takes the options and returns True if the rows come over a network. ``--dry-run`` then reads no rows. If None,
    the rows are always local."""
