"""The workflow `tool_calling`: the model calls tools turn by turn, until it sends an action to the environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from rllm.builtin.tools.toolbox import Runnable, Toolbox, runnable, without_thread
from rllm_core.contracts.environment import Environment
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.messages import Message, Response, Tool
from rllm_core.data.types import Episode
from rllm_core.notices import warn_once
from rllm_core.rollout.options import AgentWorkflowParams
from rllm_core.rollout.workflows import MultiTurnWorkflow


class ToolCallingParams(AgentWorkflowParams):
    """Options of ``tool_calling``."""

    tools: list[str] = Field(default_factory=list)
    """Functions that the model may call, each FILE.py:FUNCTION, in addition to the environment's tools."""
    tool_timeout: float = Field(30.0, gt=0)
    """Maximum number of seconds for one call. The model gets an error if a call exceeds it."""


CALLS = "tool_calls"
MALFORMED, FAILED = f"{CALLS}_malformed", f"{CALLS}_failed"


class ToolCallingWorkflow(MultiTurnWorkflow):
    """Workflow with tools. The results of a response's tool calls are the next messages. Without calls, the response is
    the agent's action.

    Every response counts as a turn for `rllm.agent.max_steps`. Metrics of an episode are the number of tool calls, the
    share of malformed calls and the share of failed calls. A malformed call is unreadable, has wrong arguments or names
    an unknown tool. A failed call raised an error or took too long. The shares exist only if the episode has calls.
    """

    def __init__(
        self, context: WorkflowContext, *, tools: Sequence[str] = (), tool_timeout: float = 30.0, **options: Any
    ) -> None:
        # The files in `tools` are already open. `context.resource` contains their functions.
        super().__init__(context, **options)
        self._of_files: Sequence[Runnable] = context.resource or ()
        self._seconds = tool_timeout
        self._toolbox = Toolbox((), tool_timeout)
        self._outcomes: Counter[str] = Counter()

    async def offered_tools(self, environment: Environment, task: Mapping[str, Any]) -> Sequence[Tool]:
        """Return the tools from files and the environment's tools.

        Raises:
            ConfigError: two tools have the same name, or an environment's tool cannot be described.
        """
        own = [runnable(each) for each in await self._ask(environment.tools, task)]
        if not self.context.environment_blocks:
            own = [without_thread(each) for each in own]
        self._toolbox = Toolbox([*self._of_files, *own], self._seconds)
        if not self._toolbox.schemas:
            warn_once(
                "workflow tool_calling runs without tools: add some with --tools FILE.py:FUNCTION, or choose an "
                "environment with tools"
            )
        if self.episode is not None:
            self.episode.metrics[CALLS] = 0.0
        return self._toolbox.schemas

    async def answers_to_calls(self, response: Response, episode: Episode) -> Sequence[Message]:
        """Return the results of the calls in `response`, one message per call."""
        answers = await self._toolbox.answers(response)
        self._outcomes.update(answer.outcome for answer in answers)
        if calls := self._outcomes.total():
            episode.metrics[CALLS] = float(calls)
            episode.metrics[MALFORMED] = self._outcomes["malformed"] / calls
            episode.metrics[FAILED] = self._outcomes["failed"] / calls
        return [answer.message for answer in answers]
