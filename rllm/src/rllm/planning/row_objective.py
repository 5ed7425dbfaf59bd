"""`RowObjective`: an objective whose rows of data replace rollouts, for example to imitate them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from rllm.planning.plan import RunPlan
    from rllm.rows.example import Conversation, PlainText
    from rllm.rows.row_limit import RowParams
    from rllm_core.contracts.backend import Backend
    from rllm_core.contracts.engine import RolloutEngine
    from rllm_core.contracts.renderer import Renderer
    from rllm_core.data.types import Episode, Task


class RowObjective(ABC):
    """Reads, checks and renders the rows of a run, and validates on them.

    A subclass is what `ObjectivePlugin.load` returns. It is created with the run's plan.
    """

    activity: ClassVar[str]
    """The start of a run's first line, such as ``fine-tuning``."""
    keeps_together: ClassVar[bool] = False
    """True if a row is dropped when an example of the row has no trained token left."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan

    def next_commands(self, checkpoint: str) -> list[str]:
        """Return lines with commands for the model in a checkpoint's directory, to print at the end of a run."""
        model = f"--model {checkpoint}"
        return [f"evaluate the model: rllm eval ENV {model}", f"train it with rewards: rllm train ENV {model}"]

    @property
    @abstractmethod
    def params(self) -> RowParams:
        """Options of the stage that brings the rows."""

    @abstractmethod
    def read(self, data: Mapping[str, Any]) -> list[Conversation | PlainText]:
        """Return the examples in a row, such as two completions to compare.

        Raises:
            RowError: a part of the row cannot be used.
        """

    @abstractmethod
    def used_columns(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the columns that `read` reads of a row."""

    @abstractmethod
    def check_rendered(self, example: Conversation | PlainText, renderer: Renderer) -> None:
        """Render an example that `read` returned.

        Raises:
            RowError: the model would not see a part of it.
            ConfigError: the rendered example does not show which tokens are trained.
        """

    @abstractmethod
    def make_episodes(self, task: Task, renderer: Renderer) -> list[Episode]:
        """Return a row's examples with their tokens, without a limit of their length.

        Raises:
            ConfigError: as `read` and `check_rendered`.
        """

    @abstractmethod
    async def validate(self, backend: Backend, engine: RolloutEngine, tasks: Sequence[Task]) -> dict[str, float]:
        """Return the metrics ``val/<data_source>/<metric>`` of validation rows, with the current weights."""
