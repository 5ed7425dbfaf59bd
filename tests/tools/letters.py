"""A renderer whose tokens are letters, for tests that count or compare the tokens of chats."""

from __future__ import annotations

from typing import Any

import numpy as np


class Letters:
    """A message is the first letter of its role, and its content. A stop token ends assistant messages.

    `Uab|Acd$|A` is a message of each role, and the start of a response.
    """

    def __init__(self, stop: str = "$") -> None:
        self.stop_ids = frozenset({ord(stop)})
        self._stop = stop

    def prompt(self, messages: Any, tools: Any = ()) -> np.ndarray:
        turns = [
            f"{each['role'][0].upper()}{each['content']}{self._stop if each['role'] == 'assistant' else ''}|"
            for each in messages
        ]
        return np.array([*map(ord, "".join(turns) + "A")], np.int32)
