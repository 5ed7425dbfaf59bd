"""Rows of a data source that have control tokens of the model in their text."""

from __future__ import annotations

from collections.abc import Sequence

from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message
from rllm_core.errors import ConfigError
from rllm_core.notices import warn_once
from rllm_core.rollout.control_tokens import REMEDY, ControlTokens


class ControlTokenRows:
    """Count of rows with control tokens in their text, such as ``<|im_end|>``, and the first of these rows."""

    def __init__(self, source: str, renderer: Renderer) -> None:
        """Create a count without rows.

        Args:
            source: the file or the dataset, for messages.
            renderer: the renderer of the run. Renderers of plugins may have no `ControlTokens`. Then no row is counted.
        """
        found = getattr(renderer, "control_tokens", None)
        self._control_tokens = found if isinstance(found, ControlTokens) else None
        self._source = source
        self._rows: dict[str, str] = {}

    def add(self, row: str, messages: Sequence[Message]) -> bool:
        """Count a row, once for all its conversations. Return True if it has control tokens."""
        found = self._control_tokens.find(messages) if self._control_tokens is not None else []
        if found:
            self._rows.setdefault(row, found[0])
        return bool(found)

    def report(self) -> None:
        """Print a warning if rows have control tokens.

        Raises:
            ConfigError: rows have control tokens, and the renderer's option `control_tokens` is ``error``.
        """
        if self._control_tokens is None or not self._rows:
            return
        row, token = next(iter(self._rows.items()))
        count = f"{len(self._rows):,} rows have" if len(self._rows) > 1 else "1 row has"
        problem = f"{self._source}: {count} control tokens of the model in the text, such as {token!r} in row {row!r}."
        if self._control_tokens.in_text == "error":
            raise ConfigError("bad-row", problem, REMEDY)
        outcome = "are plain text" if self._control_tokens.in_text == "plain" else "keep their meaning"
        warn_once(f"{problem} They {outcome} (rllm.renderer.control_tokens={self._control_tokens.in_text}).")
