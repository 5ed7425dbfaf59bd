"""A trained response ends with the stop token that the template writes after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rllm.builtin.supervised.turns import response_tokens


class Turns:
    """A renderer of letters. A turn is the first letter of its role, its content, and `ends` after an assistant."""

    def __init__(self, stops: str, ends: str) -> None:
        self.stop_ids = frozenset(map(ord, stops))
        self._ends = ends

    def prompt(self, messages: Any, tools: Any = ()) -> np.ndarray:
        turns = [each["role"][0].upper() + each["content"] for each in messages]
        ends = [self._ends if each["role"] == "assistant" else "|" for each in messages]
        return np.array([*map(ord, "".join(map("".join, zip(turns, ends, strict=True))) + "A")], np.int32)


@pytest.mark.parametrize(
    ("stops", "ends", "message", "trained"),
    [
        ("$", "$|", {"content": "cd"}, "cd$"),
        ("$A", "$|", {"content": "cd"}, "cd$"),  # the header of the next turn is a stop token, as in Phi 3
        ("$A", "$|", {"content": "c$dx"}, "c$dx$"),  # and the text has a stop token
        ("$A", "$|", {"content": "c$ab"}, "c$ab$"),
        ("$|", "#$|", {"content": "cd"}, "cd#$"),
        ("UT", "", {"content": "cd"}, "cdU"),  # the next header ends a response, as in GLM
        ("UT", "", {"content": "cTd"}, "cTdU"),
        ("UT", "", {"content": "cTUd"}, "cTUdU"),
        ("UT", "", {"content": "cd", "tool_calls": [{"id": "1"}]}, "cdT"),
        ("%", "$|", {"content": "cd"}, None),
    ],
)
def test_response_ends_as_the_template_ends_it(stops: str, ends: str, message: Any, trained: str | None) -> None:
    renderer: Any = Turns(stops, ends)
    user = {"role": "user", "content": "ab"}
    response = response_tokens(renderer, [user, {"role": "assistant", **message}], (), len(renderer.prompt([user])))
    assert (None if response is None else "".join(map(chr, response))) == trained
