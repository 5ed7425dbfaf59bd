"""The words of a shell script as the shell splits them, quotes and expansions left in place.

Only what launch scripts are written with: quotes, line continuations, comments, arrays, redirections, here-documents.
Nothing is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_CLOSING = {"{": "}", "(": ")"}
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_ENDS_A_COMMAND = "\n;&|()"


@dataclass(frozen=True)
class RawWord:
    """A word in its unexpanded form."""

    text: str
    """The word with its quotes. For an array, the part before the parenthesis, such as ``DATA=``."""
    items: tuple[str, ...] | None = None
    """The words of an array."""


@dataclass(frozen=True)
class RawCommand:
    """One simple command."""

    line: int
    """Line number in the script, from 1."""
    words: tuple[RawWord, ...]


def raw_commands(script: str) -> Iterator[RawCommand]:
    """The simple commands of a script, in the order in which they are written."""
    yield from _Reader(script.replace("\r\n", "\n")).commands()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._heredocs: list[str] = []

    def commands(self) -> Iterator[RawCommand]:
        words: list[RawWord] = []
        line = 1
        while (character := self._skip_blanks()) is not None:
            if character in _ENDS_A_COMMAND and not self._is_redirection():
                self._at += 1
                if character == "\n":
                    self._skip_heredocs()
                if words:
                    yield RawCommand(line, tuple(words))
                words = []
            elif character in "<>&":
                self._redirection()
            else:
                if not words:
                    line = self._text.count("\n", 0, self._at) + 1
                words += self._word()
        if words:
            yield RawCommand(line, tuple(words))

    def _skip_blanks(self) -> str | None:
        """The next character that is no blank, no continued line and no comment; None at the end."""
        while self._at < len(self._text):
            if self._text.startswith("\\\n", self._at):
                self._at += 2
            elif self._text[self._at] in " \t":
                self._at += 1
            elif self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return self._text[self._at]
        return None

    def _is_redirection(self) -> bool:
        return self._text.startswith("&>", self._at)

    def _redirection(self) -> None:
        operator = re.compile(r"&?[<>]+[&|-]?").match(self._text, self._at)
        assert operator is not None
        self._at = operator.end()
        following = self._skip_blanks()
        target = self._word() if following is not None and following not in _ENDS_A_COMMAND else []
        if operator.group() in ("<<", "<<-"):
            self._heredocs += [word.text.strip("'\"") for word in target]

    def _skip_heredocs(self) -> None:
        for end in self._heredocs:
            found = re.compile(rf"^\s*{re.escape(end)}\s*$\n?", re.MULTILINE).search(self._text, self._at)
            self._at = found.end() if found else len(self._text)
        self._heredocs = []

    def _word(self) -> list[RawWord]:
        """The word that begins here; nothing for the number of a redirected file (``2>``)."""
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in " \t\n;&|()<>":
            self._at = self._end_of_piece(self._at)
        written = self._text[start : self._at].replace("\\\n", "")
        next_one = self._text[self._at : self._at + 1]
        if next_one == "(" and _ARRAY.fullmatch(written):
            return [RawWord(written, self._array())]
        return [] if written.isdigit() and next_one in ("<", ">") else [RawWord(written)]

    def _array(self) -> tuple[str, ...]:
        self._at += 1
        items: list[str] = []
        while (character := self._skip_blanks()) is not None and character != ")":
            if character in "\n;&|(<>":
                self._at += 1
            else:
                items += [word.text for word in self._word()]
        self._at += 1
        return tuple(items)

    def _end_of_piece(self, at: int) -> int:
        """Return the end of the character, quoted text or expansion that starts here."""
        return min(end_of_piece(self._text, at), len(self._text))


def end_of_piece(text: str, at: int) -> int:
    """Return the end of the character, quoted text or expansion at `at`. Beyond the text if it has no end."""
    character = text[at]
    if character == "\\":
        return at + 2
    if character == "'":
        return _after(text.find("'", at + 1), text)
    if character in '"`':
        return _end_of_quotes(text, at, character)
    if character == "$" and text[at + 1 : at + 2] in _CLOSING:
        return _end_of_expansion(text, at + 1)
    return at + 1


def _end_of_quotes(text: str, at: int, quote: str) -> int:
    at += 1
    while at < len(text) and text[at] != quote:
        # A single quote between double quotes is a letter like others.
        at = at + 1 if text[at] == "'" else end_of_piece(text, at)
    return at + 1


def _end_of_expansion(text: str, at: int) -> int:
    opening, closing = text[at], _CLOSING[text[at]]
    at, depth = at + 1, 1
    while at < len(text) and depth:
        depth += (text[at] == opening) - (text[at] == closing)
        at = at + 1 if text[at] in (opening, closing) else end_of_piece(text, at)
    return at


def _after(found: int, text: str) -> int:
    return len(text) if found < 0 else found + 1
