"""Agents: between environment and model. What the world says becomes chat messages, the model's reply an action."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rllm_core.contracts.plugin import ParamsT, Plugin

if TYPE_CHECKING:
    from rllm_core.data.messages import Action, Message, Response


class Agent(ABC):
    """One instance serves one attempt; it is made anew for each with the agent's options.

    Both methods are called between model calls and should only compute and return at once.
    """

    @abstractmethod
    def observe(self, observation: str | Sequence[Message]) -> Sequence[Message]:
        """What the environment said, as chat messages for the model: the first observation and each later one.

        Only what is new is returned; earlier messages and the model's own words stay as they are.
        """

    @abstractmethod
    def act(self, response: Response) -> Action:
        """The model's reply, as an action for the environment: text, or an object where the environment takes those."""


@dataclass(frozen=True, kw_only=True)
class AgentPlugin(Plugin[ParamsT]):
    """Offers an agent. Chosen by ``rllm.agent.name``; its options are ``rllm.agent.agent_args``."""

    kind: ClassVar[str] = "agent"

    load: Callable[[], Callable[[Any], Agent]]
    """Returns the `Agent` class, whose constructor takes the options."""
