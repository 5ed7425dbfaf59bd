"""Agents: they convert observations of the environment to chat messages, and the model's responses to actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from rllm_core.data.messages import Action, Message, Response


class Agent(ABC):
    """The interface between an environment and a model.

    Each rollout has its own instance, made with the agent's options. Both methods are called between model calls. They
    must return quickly and must not block.
    """

    @abstractmethod
    def observe(self, observation: str | Sequence[Message]) -> Sequence[Message]:
        """Convert an observation to chat messages for the model. Called for the first observation and for each later
        one.

        Return only new messages. Earlier messages and the model's own responses are never changed.
        """

    @abstractmethod
    def act(self, response: Response) -> Action:
        """Convert the model's response to an action for the environment: text, or an object if the environment accepts
        objects."""


@dataclass(frozen=True, kw_only=True)
class AgentPlugin(Plugin[ParamsT]):
    """A plugin spec that offers an agent. Users choose it with ``rllm.agent.name``. Its options are
    ``rllm.agent.agent_args``.

    For example::

        from rllm_core.contracts import Agent, AgentPlugin, Params
        from rllm_core.plugins import hookimpl

        class LastLineParams(Params):
            request: str = "Think aloud. Your last line is your answer."

        class LastLine(Agent):
            def __init__(self, params):
                self.request = params.request

            def observe(self, observation):
                said = [{"role": "user", "content": observation}] if isinstance(observation, str) else observation
                return [*said, {"role": "user", "content": self.request}]

            def act(self, response):
                return response.text.strip().rpartition("\\n")[2]

        @hookimpl
        def rllm_agents():
            yield AgentPlugin(
                name="last_line",
                summary="The last line of a response is the action.",
                load_params=lambda: LastLineParams,
                load=lambda: LastLine,
            )
    """

    kind: ClassVar[str] = "agent"

    load: Callable[[], Callable[[Any], Agent]]
    """Returns the `Agent` class, whose constructor takes the options."""
