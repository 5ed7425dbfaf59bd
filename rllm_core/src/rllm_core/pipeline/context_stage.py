"""Base class of most built-in stages."""

from __future__ import annotations

from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.stage_context import StageContext


class ContextStage:
    """A stage that stores the run's context and has no options."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._context = context
