"""The text of a choice that a client has been sent."""

from __future__ import annotations

from dataclasses import dataclass

from rllm_gateway.answer import Choice
from rllm_gateway.refusals import RefusedError


@dataclass(frozen=True)
class Settled:
    """Text of a choice that no later token changes."""

    reasoning: str = ""
    content: str = ""
    """Empty while `reasoning` can still grow."""


@dataclass
class Told:
    """The text of one choice that a client has been sent."""

    reasoning: str = ""
    content: str = ""

    def more(self, settled: Settled | Choice) -> Settled:
        """Return the text that follows, and count it as sent.

        Raises:
            RefusedError: sent text would have to be taken back, because of a fault of the renderer.
        """
        late = self.content and settled.reasoning != self.reasoning
        if late or not (settled.reasoning.startswith(self.reasoning) and settled.content.startswith(self.content)):
            raise RefusedError(
                500, "failed", "The model's renderer has changed text that was streamed. Send the request unstreamed."
            )
        more = Settled(settled.reasoning[len(self.reasoning) :], settled.content[len(self.content) :])
        self.reasoning, self.content = settled.reasoning, settled.content
        return more
