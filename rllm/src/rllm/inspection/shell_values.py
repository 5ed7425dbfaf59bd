"""Expand words of a shell script: variables and arrays that it sets, defaults, sums. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from rllm.inspection.shell_sums import evaluate_sum
from rllm.inspection.shell_words import end_of_piece

_NAME = r"[A-Za-z_]\w*"
_PARAMETER = re.compile(rf"(?P<name>{_NAME}|[0-9@*#?$!-])(?:\[(?P<index>[^\]]+)\])?(?P<rest>.*)", re.DOTALL)
_WITH_WORD = re.compile(r"(:?[-=+?])(.*)", re.DOTALL)


class UndecidedError(Exception):
    """The value of a word depends on the execution of the script. The message gives the reason."""


@dataclass(frozen=True)
class Undecided:
    """The value of a variable that the script sets in more than one way."""

    why: str


Value = str | tuple[str, ...] | Undecided


@dataclass
class Variables:
    """Variables that the script has set so far. Other variables come from the environment."""

    set: dict[str, Value] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """The value of a variable; None where the script does not set it.

        Raises:
            UndecidedError: it depends on what happens when the script runs.
        """
        value = self.set.get(name)
        if isinstance(value, Undecided):
            raise UndecidedError(value.why)
        return value[0] if isinstance(value, tuple) and value else None if isinstance(value, tuple) else value

    def array(self, name: str) -> tuple[str, ...]:
        """The items of an array, or the value of a variable as the only one.

        Raises:
            UndecidedError: it depends on what happens when the script runs.
        """
        value = self.set.get(name)
        if isinstance(value, tuple):
            return value
        text = self.text(name)
        return () if text is None else (text,)

    def words(self, raw: str) -> list[str]:
        """Expand a word of the script: to nothing for an empty array, to several words for an array with items.

        Raises:
            UndecidedError: the result depends on the execution of the script.
        """
        words, started = [""], False
        for text, begins in self._pieces(raw):
            if begins:
                words.append(text)
            else:
                words[-1] += text
            started = True
        return words if started else []

    def one(self, raw: str) -> str:
        """Expand a word that the shell does not split, such as the value of an assignment."""
        return " ".join(self.words(f'"{raw}"' if _is_bare(raw) else raw))

    def _pieces(self, raw: str) -> Iterator[tuple[str, bool]]:
        """Parts of words, and whether each begins another word."""
        at = 0
        while at < len(raw):
            end = end_of_piece(raw, at)
            piece, at = raw[at:end], end
            if piece.startswith("'"):
                yield piece[1:-1], False
            elif piece.startswith('"'):
                yield from self._quoted(piece[1:-1])
            elif piece.startswith("\\"):
                yield piece[1:], False
            elif piece.startswith(("$", "`")):
                name, at = self._whole_name(raw, piece, at)
                yield from self._split(name)
            else:
                yield piece, False

    def _quoted(self, text: str) -> Iterator[tuple[str, bool]]:
        pieces, at = list[tuple[str, bool]](), 0
        without_items = bool(text)
        while at < len(text):
            end = at + 1 if text[at] == "'" else end_of_piece(text, at)
            piece, at = text[at:end], end
            if not piece.startswith(("$", "`")):
                plain = piece[1:] if piece.startswith("\\") and piece[1:] in '"\\$`' else piece
                pieces.append((plain, False))
                without_items = False
                continue
            name, at = self._whole_name(text, piece, at)
            items = self._items(name)
            without_items = without_items and items == ()
            values = (self._value(name),) if items is None else items
            pieces += [(item, index > 0) for index, item in enumerate(values)]
        if not without_items:
            yield "", False  # quotes make a word, even an empty one, unless an empty array is all they hold
        yield from pieces

    def _whole_name(self, text: str, piece: str, at: int) -> tuple[str, int]:
        """Return the whole expansion that starts with `piece`, such as ``$NAME`` or ``$1``, and the index after it."""
        if piece == "$" and (found := re.compile(rf"{_NAME}|[0-9@*#?$!-]").match(text, at)):
            return piece + found.group(), found.end()
        return piece, at

    def _split(self, expansion: str) -> Iterator[tuple[str, bool]]:
        """Split an expansion without quotes at blanks, as the shell does."""
        items = self._items(expansion)
        words = [word for item in (items if items is not None else [self._value(expansion)]) for word in item.split()]
        yield from ((word, index > 0) for index, word in enumerate(words))

    def _items(self, expansion: str) -> tuple[str, ...] | None:
        """The items of ``${NAME[@]}`` and ``$@``; None where the expansion is one value."""
        found = _PARAMETER.fullmatch(_inside(expansion))
        if found is None or expansion.startswith(("$(", "`")) or found["rest"]:
            return None
        if found["name"] in "@*":
            return ()  # the script is read as if nothing were given to it
        return self.array(found["name"]) if found["index"] in ("@", "*") else None

    def _value(self, expansion: str) -> str:
        if expansion == "$":
            return expansion
        if expansion.startswith("$(("):
            return str(self._sum(expansion[3:-2]))
        if expansion.startswith(("$(", "`")):
            raise UndecidedError("It is the output of a command")
        found = _PARAMETER.fullmatch(_inside(expansion))
        if found is None or found["index"]:
            raise UndecidedError(f"`{expansion}` is not read")
        name, rest = found["name"], found["rest"]
        if not re.fullmatch(_NAME, name):
            return self._argument(expansion, rest)
        return self._with_word(name, rest, expansion) if rest else self._text(name)

    def _text(self, name: str) -> str:
        text = self.text(name)
        return f"${{oc.env:{name}}}" if text is None else text

    def _argument(self, expansion: str, rest: str) -> str:
        found = _WITH_WORD.fullmatch(rest)
        if found and found[1] in (":-", "-", ":="):
            return self.one(found[2])
        raise UndecidedError(f"`{expansion}` is known when the script runs")

    def _with_word(self, name: str, rest: str, expansion: str) -> str:
        """``${NAME:-word}`` and its kin."""
        found = _WITH_WORD.fullmatch(rest)
        if found is None:
            raise UndecidedError(f"`{expansion}` is not read")
        text, how = self.text(name), found[1].strip(":")
        if how == "+":
            return self.one(found[2]) if text else ""
        if text or how == "?":
            return text or self._text(name)
        word = self.one(found[2])
        if how == "=":
            self.set[name] = word
        return word

    def _sum(self, text: str) -> int:
        names = re.sub(rf"\$\{{?({_NAME})\}}?", r"\1", text).strip()
        try:
            return evaluate_sum(names, self.text)
        except ValueError as error:
            raise UndecidedError(f"The sum `{text.strip()}` is not read") from error


def _inside(expansion: str) -> str:
    return expansion[2:-1] if expansion.startswith("${") else expansion[1:]


def _is_bare(raw: str) -> bool:
    """True if it has no quotes outside of expansions, so that quotes around it keep its blanks together."""
    at = 0
    while at < len(raw):
        if raw[at] in "'\"\\":
            return False
        at = end_of_piece(raw, at)
    return True
