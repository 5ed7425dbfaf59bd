"""The example in a row of data: chat messages, or text without a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rllm_core.data.messages import Message, Tool

if TYPE_CHECKING:
    from rllm_core.contracts.renderer import Renderer
    from rllm_core.data.types import Episode


@dataclass(frozen=True)
class Conversation:
    """Chat messages. Assistant messages from the place `trained_from` are trained, except those in `untrained`."""

    messages: Sequence[Message]
    trained_from: int
    tools: Sequence[Tool] = ()
    untrained: frozenset[int] = frozenset()
    """Positions of assistant messages that are not trained: with a weight of 0, or at the start."""
    unused: int = 0
    """Messages of the row after the last assistant message."""
    column: str = field(default="messages", compare=False)
    """The column of the trained messages. The column of the messages before them is `prompt`."""

    @property
    def trained(self) -> list[Message]:
        """The messages that are trained."""
        places = range(self.trained_from, len(self.messages))
        return [
            self.messages[at] for at in places if self.messages[at]["role"] == "assistant" and at not in self.untrained
        ]

    def place_of(self, number: int) -> str:
        """Return the place of a message in its column, for errors."""
        start = self.trained_from
        return f"prompt[{number}]" if number < start else f"{self.column}[{number - start}]"


@dataclass(frozen=True)
class PlainText:
    """Text without a chat template. Only `completion` is trained."""

    prompt: str
    completion: str


def is_empty_response(message: Message) -> bool:
    """Return True if an assistant message has no text, reasoning and tool calls."""
    return not (message["content"] or message.get("reasoning_content") or message.get("tool_calls"))


@runtime_checkable
class HasExamples(Protocol):
    """A task that stores finished rollouts instead of a row."""

    def examples(self, renderer: Renderer | None) -> list[Episode]:
        """Return the rollouts. Raise ConfigError if they have other tokens than the model of `renderer`, if any."""
        ...
