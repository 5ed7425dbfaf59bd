"""What of a reply is the answer."""

from __future__ import annotations

import re
from typing import Literal

How = Literal["auto", "tags", "response"]
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def answer_of(response: str, how: How) -> str | None:
    """The answer in a reply, without white space around it; None where there is none.

    Tags are read as by ``reasoning_gym.utils.extract_answer``: the last pair counts.
    """
    tagged = TAGGED.findall(response) if how != "response" else []
    if not tagged and how == "tags":
        return None
    answer: str = tagged[-1] if tagged else response
    return answer.strip() or None


def written(answer: str, how: How) -> str:
    """A reply that gives `answer` in the shortest form that is read."""
    return f"<answer>{answer}</answer>" if how == "tags" else answer
