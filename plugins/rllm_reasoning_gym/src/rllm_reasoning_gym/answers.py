"""What of a reply is the answer."""

from __future__ import annotations

import re
from typing import Literal

TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def answer_of(reply: str, how: Literal["auto", "tags", "reply"]) -> str | None:
    """The answer in a reply, without white space around it; None where there is none.

    Tags are read as by ``reasoning_gym.utils.extract_answer``: the last pair counts.
    """
    tagged = TAGGED.findall(reply) if how != "reply" else []
    if not tagged and how == "tags":
        return None
    answer: str = tagged[-1] if tagged else reply
    return answer.strip() or None
