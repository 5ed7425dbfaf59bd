"""`Comparison`: the rows of `rllm prefer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllm.builtin.preferences.options import PreferParams
from rllm.builtin.supervised.objective import Imitation

if TYPE_CHECKING:
    from rllm.rows.example import Conversation, PlainText
    from rllm_core.contracts.backend import Backend
    from rllm_core.contracts.engine import RolloutEngine
    from rllm_core.contracts.renderer import Renderer
    from rllm_core.data.types import Episode, Task


class Comparison(Imitation):
    """Learning from better and worse completions of a prompt. They are read and rendered as examples."""

    activity = "learning preferences"
    keeps_together = True

    @property
    def preference(self) -> PreferParams:
        """Options of the stage `prefer`."""
        return next(stage.params for stage in self.plan.stages if isinstance(stage.params, PreferParams))

    def read(self, data: Mapping[str, Any]) -> list[Conversation | PlainText]:
        from rllm.builtin.preferences.rows import check_completions, read_preference

        completions = read_preference(data)
        check_completions(completions, self.preference.loss)
        return [*completions.values()]

    def used_columns(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        from rllm.builtin.preferences.rows import used_columns

        return used_columns(data)

    def make_episodes(self, task: Task, renderer: Renderer) -> list[Episode]:
        from rllm.builtin.preferences.stages import make_completions

        return [make_completions(task, renderer, self.params)]

    async def validate(self, backend: Backend, engine: RolloutEngine, tasks: Sequence[Task]) -> dict[str, float]:
        from rllm.builtin.preferences.validation import validate_preferences

        size = self.plan.config.data.val_batch_size
        return await validate_preferences(backend, engine, tasks, size, self.params, self.preference)
