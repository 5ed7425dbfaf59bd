"""`Imitation`: the rows of `rllm sft`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllm.builtin.supervised.options import ExamplesParams
from rllm.planning.row_objective import RowObjective

if TYPE_CHECKING:
    from rllm.rows.example import Conversation, PlainText
    from rllm_core.contracts.backend import Backend
    from rllm_core.contracts.engine import RolloutEngine
    from rllm_core.contracts.renderer import Renderer
    from rllm_core.data.types import Episode, Task


class Imitation(RowObjective):
    """Fine-tuning on conversations and text: the loss is the mean of -log p over the trained tokens."""

    activity = "fine-tuning"

    @property
    def params(self) -> ExamplesParams:
        found = (stage.params for stage in self.plan.stages if isinstance(stage.params, ExamplesParams))
        return next(found, ExamplesParams())

    def read(self, data: Mapping[str, Any]) -> list[Conversation | PlainText]:
        from rllm.builtin.supervised.rows import read_row

        return [read_row(data)]

    def used_columns(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        from rllm.builtin.supervised.rows import used_columns

        return used_columns(data)

    def check_rendered(self, example: Conversation | PlainText, renderer: Renderer) -> None:
        from rllm.builtin.supervised.turns import make_turns

        make_turns(example, renderer, self.params)

    def make_episodes(self, task: Task, renderer: Renderer) -> list[Episode]:
        from rllm.builtin.supervised.stages import make_examples

        return make_examples(task, renderer, self.params)

    async def validate(self, backend: Backend, engine: RolloutEngine, tasks: Sequence[Task]) -> dict[str, float]:
        from rllm.builtin.supervised.validation import validate_examples

        return await validate_examples(backend, engine, tasks, self.plan.config.data.val_batch_size, self.params)
