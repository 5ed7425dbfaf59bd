"""What becomes of each parameter of a request. Each is in exactly one class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from rllm_gateway.refusals import invalid

Outcome = Literal["honoured", "overruled", "ignored"]
IGNORE = "Set rllm.workflow.workflow_args.unsupported=ignore to ignore it. The session then counts such requests."
SAMPLERS_OF_OTHERS = frozenset(
    ("top_k", "min_p", "typical_p", "repetition_penalty", "min_tokens", "frequency_penalty", "presence_penalty", "seed")
)
"""Parameters of sampling that servers beside OpenAI's know; the run decides how is sampled."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The parameters of an API."""

    honoured: frozenset[str]
    overruled: frozenset[str]
    """The run has a value of its own, which wins."""
    ignored: frozenset[str]
    """Accepted, as they ask for nothing that changes what is sampled."""
    refused: Mapping[str, tuple[Any, ...]]
    """Name -> values that ask for nothing. Any other is a 400, and so is every parameter that is in no class."""
    held: frozenset[str] = frozenset()
    """What names a part of the conversation that a server keeps. A 400 in every session: ignored, it would drop that
    part without a word."""

    def outcomes(self, body: Mapping[str, Any], unsupported: Literal["refuse", "ignore"]) -> dict[str, Outcome]:
        """What becomes of each parameter of a request.

        Raises:
            RefusedError: nothing can act on one of them, and `unsupported` is ``refuse``; or one is `held`.
        """
        found = dict[str, Outcome]()
        for name, value in body.items():
            if name in self.held:
                refuse_held(name)
            if name in self.honoured:
                found[name] = "honoured"
            elif name in self.overruled or name in SAMPLERS_OF_OTHERS:
                found[name] = "overruled"
            elif name in self.ignored or value in self.refused.get(name, ()):
                found[name] = "ignored"
            else:
                refuse_unless_ignored(name, unsupported)
                found[name] = "ignored"
        return found


def refuse_held(name: str) -> NoReturn:
    """Raise RefusedError for what names a part of the conversation that a server keeps."""
    raise invalid(
        f"{name} is not supported: nothing of a conversation is kept for later requests. Send all messages each time.",
        name,
        "unsupported_parameter",
    )


def refuse_unless_ignored(name: str, unsupported: Literal["refuse", "ignore"]) -> None:
    """Raise RefusedError for a part of a request that nothing can act on, unless the session ignores such parts."""
    if unsupported == "refuse":
        raise invalid(
            f"{name:.80} is not supported, or not with this value. {IGNORE}",
            f"{name:.80}",
            "unsupported_parameter",
        )
