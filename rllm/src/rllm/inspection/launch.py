"""Find the training that a shell script launches: the program's arguments, with variables replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rllm.inspection.shell_values import Undecided, UndecidedError, Variables
from rllm.inspection.shell_words import RawCommand, RawWord, raw_commands
from rllm_core.errors import ConfigError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_OVERRIDE = re.compile(r"[+~]{0,2}(rllm/\w+|[A-Za-z_]\w*(\.[\w-]+)+)=")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_OPENS = ("if", "while", "until", "for", "case", "select")
_CLOSES = ("fi", "done", "esac")
_GOES_ON = ("then", "else", "elif", "do", "!", "{", "}", "time", "exec", "nohup")


@dataclass(frozen=True)
class Word:
    """A word that the script gives to the program."""

    text: str
    """The argument with variables replaced, or as written if they are not known."""
    undecided: str = ""
    """Why it is not known."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A training that a script starts."""

    line: int
    program: str
    """A module, as behind ``python -m``, or a file."""
    words: tuple[Word, ...]
    """Arguments after the program."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that the script sets for the programs it starts."""

    @property
    def options(self) -> dict[str, str]:
        """Options of Hydra, such as ``--config-name``, with their values."""
        found: dict[str, str] = {}
        for word, following in zip(self.words, (*self.words[1:], Word("")), strict=True):
            if word.text.startswith("--"):
                name, equals, value = word.text.partition("=")
                found[name] = value if equals or "=" in following.text else following.text
        return found

    @property
    def overrides(self) -> list[Word]:
        """The other words: ``key=value``."""
        return [
            word for word in self.words if not word.text.startswith("--") and word.text not in self.options.values()
        ]

    @property
    def trains(self) -> bool:
        """True if its arguments contain overrides, as training commands do."""
        return any(_OVERRIDE.match(word.text) for word in self.words)


def read_launch(script: str, name: str) -> Launch:
    """The one training that a script starts.

    Args:
        name: of the script, for messages.

    Raises:
        ConfigError: it starts none, or several.
    """
    found = [launch for launch in _Reading().launches(script) if launch.trains]
    if not found:
        raise ConfigError(
            "no-training-command",
            f"{name} starts no training: no command runs a Python program with words such as data.train_batch_size=8.",
            "Name the script that has them; a YAML file ends in .yaml or .yml.",
        )
    if len(found) > 1:
        lines = ", ".join(str(launch.line) for launch in found)
        raise ConfigError(
            "several-training-commands",
            f"{name} starts {len(found)} trainings (lines {lines}).",
            "Keep one in a copy of it.",
        )
    return found[0]


class _Reading:
    """Goes through a script from top to bottom, once."""

    def __init__(self) -> None:
        self._variables = Variables()
        self._exported: dict[str, None] = {}
        self._depth = 0
        """Nesting depth of conditions and loops around the command."""

    def launches(self, script: str) -> Iterator[Launch]:
        for command in raw_commands(script):
            words = self._without_keywords(command.words)
            given: dict[str, str] = {}
            if words and words[0].text in _DECLARES:
                self._declare(words)
                continue
            while words and (found := _ASSIGNMENT.fullmatch(words[0].text)):
                if len(words) > 1:
                    given[found[1]] = self._shown(found[3])
                self._assign(words[0]) if all(_ASSIGNMENT.fullmatch(word.text) for word in words) else None
                words = words[1:]
            if words and (launch := self._launch(command, words, given)):
                yield launch

    def _without_keywords(self, words: Sequence[RawWord]) -> Sequence[RawWord]:
        while words and words[0].text in (*_OPENS, *_CLOSES, *_GOES_ON):
            keyword = words[0].text
            self._depth += (keyword in _OPENS) - (keyword in _CLOSES)
            words = words[1:]
            if keyword == "for" and words:
                self._variables.set[words[0].text] = Undecided(f"`{words[0].text}` counts a loop")
            if keyword in ("for", "case", "select"):
                return ()
        return words

    def _declare(self, words: Sequence[RawWord]) -> None:
        for word in words[1:]:
            if found := _ASSIGNMENT.fullmatch(word.text):
                self._assign(word)
                name = found[1]
            else:
                name = word.text
            if words[0].text == "export" and not name.startswith("-"):
                self._exported[name] = None

    def _assign(self, word: RawWord) -> None:
        found = _ASSIGNMENT.fullmatch(word.text)
        assert found is not None
        name, adds = found[1], bool(found[2])
        if self._depth:
            self._variables.set[name] = Undecided(f"`{name}` is set in a condition or a loop")
            return
        try:
            before = self._variables.array(name) if adds else ()
            if word.items is None:
                self._variables.set[name] = "".join((*before, self._variables.one(found[3])))
            else:
                items = (each for item in word.items for each in self._variables.words(item))
                self._variables.set[name] = (*before, *items)
        except UndecidedError as error:
            self._variables.set[name] = Undecided(str(error))

    def _launch(self, command: RawCommand, words: Sequence[RawWord], given: dict[str, str]) -> Launch | None:
        expanded = [each for word in words for each in self._words(word)]
        texts = [word.text for word in expanded]
        at = _program_at(texts)
        if at is None:
            return None
        exported = {name: self._shown(f"${name}") for name in self._exported}
        return Launch(
            line=command.line, program=texts[at], words=tuple(expanded[at + 1 :]), environment=exported | given
        )

    def _words(self, word: RawWord) -> list[Word]:
        try:
            return [Word(text) for text in self._variables.words(word.text)]
        except UndecidedError as error:
            return [Word(word.text, str(error))]

    def _shown(self, raw: str) -> str:
        try:
            return self._variables.one(raw)
        except UndecidedError:
            return raw


def _program_at(words: Sequence[str]) -> int | None:
    """Return the index of the argument with the Python module or file. None if there is none."""
    for index, word in enumerate(words):
        if word == "-m" and index + 1 < len(words):
            return index + 1
        if word.endswith(".py") and "=" not in word:
            return index
    return None
