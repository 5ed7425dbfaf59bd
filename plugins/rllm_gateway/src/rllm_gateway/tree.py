"""The tree of a session's conversations: which request continues which reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rllm_core.data.messages import Message, Tool
from rllm_gateway.asked import Asked
from rllm_gateway.digests import chained, next_digest, root_digest
from rllm_gateway.session import SessionSpec


@dataclass(eq=False, slots=True)
class Node:
    """A stored call. Its prompt is kept as what follows its parent's tokens."""

    id: str
    digest: bytes
    """Of the prompt."""
    parent: Node | None
    branch: str
    kept: int
    """How many tokens of the parent's prompt and reply its prompt begins with."""
    new_ids: NDArray[np.int32]
    """(n_new,) tokens of the prompt behind these."""
    response_ids: NDArray[np.int32]
    """(n,) what was sampled."""
    message: Message
    heard_user: bool
    """Whether the user spoke since the parent's reply."""
    said: Sequence[Message] = ()
    """What was said since the parent's reply, where the session keeps messages."""
    tools: Sequence[Tool] = ()
    """What the model was offered."""
    continued: bool = False
    """Whether a call of the same branch follows."""

    @property
    def size(self) -> int:
        """Tokens of prompt and reply."""
        return self.kept + len(self.new_ids) + len(self.response_ids)

    @property
    def extends_parent(self) -> bool:
        """Whether its prompt begins with all of the parent's prompt and reply."""
        return self.parent is not None and self.kept == self.parent.size

    @property
    def messages(self) -> list[Message]:
        """The conversation up to the reply, where the session keeps messages."""
        turns, node = [[*self.said, self.message]], self
        while node.parent is not None:
            node = node.parent
            turns.append([*node.said, node.message])
        return [message for turn in reversed(turns) for message in turn]

    @property
    def prompt_ids(self) -> NDArray[np.int32]:
        """(n,) tokens of the whole prompt."""
        pieces, node, needed = [self.new_ids], self, self.kept
        while node.parent is not None:
            node = node.parent
            # From the end of what is needed of this node, its reply first.
            for piece, start in (
                (node.response_ids, node.kept + len(node.new_ids)),
                (node.new_ids, node.kept),
            ):
                if needed > start:
                    pieces.append(piece[: needed - start])
                    needed = start
        return np.concatenate(pieces[::-1])


@dataclass(frozen=True, eq=False)
class Place:
    """Where a request belongs."""

    digest: bytes
    """Of its prompt."""
    parent: Node | None
    """The reply that it continues; None: it continues none."""
    matched: Mapping[int, Node]
    """The messages that are replies of this session, by their index."""
    rest: Sequence[Message]
    """Messages behind the parent's reply."""
    tools: Sequence[Tool]
    """What the model is offered; one object for all requests of a session that offer the same."""
    foreign: int
    """Messages of the assistant that were not sampled here, or not at this place."""


@dataclass(eq=False)
class Tree:
    """All conversations of a session, by the digests of what was said."""

    spec: SessionSpec
    nodes: dict[bytes, Node] = field(default_factory=dict)
    """By the digest of the conversation that ends with the reply."""
    tools: dict[bytes, Sequence[Tool]] = field(default_factory=dict)
    """By the digest of what comes before the first message."""

    def place(self, role: str, asked: Asked) -> Place:
        """Find the longest beginning of a request that ends with a reply of this session."""
        root = root_digest(role, asked.tools, self.spec.template_options)
        digests = chained(root, asked.messages)
        of_assistant = [at for at, message in enumerate(asked.messages) if message["role"] == "assistant"]
        matched = {at: node for at in of_assistant if (node := self.nodes.get(digests[at])) is not None}
        last = max(matched, default=-1)
        return Place(
            digest=digests[-1],
            parent=matched.get(last),
            matched=matched,
            rest=asked.messages[last + 1 :],
            tools=self.tools.setdefault(root, asked.tools),
            foreign=len(of_assistant) - len(matched),
        )

    def add(self, node: Node) -> None:
        """A reply that later requests may continue. Of replies that say the same, the first is continued."""
        self.nodes.setdefault(next_digest(node.digest, node.message), node)
