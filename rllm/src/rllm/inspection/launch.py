"""Find the training that a shell script launches: the program's arguments, with variables replaced.

Only what launch scripts are written with is read: quotes, line continuations, comments, arrays, redirections,
here-documents, defaults such as ``${NAME:-value}``, and sums. Nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rllm_core.errors import ConfigError

_DOUBLE = r'"(?:\\.|[^"\\])*"'
_BRACED = r"(?:[^{}]|\{[^{}]*\})*"
_OUTPUT = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*"
_TOKEN = re.compile(
    rf"""(?P<blank>[ \t]+|(?<![^\s;&|()])\#[^\n]*)
    |(?P<redirection>(?:&|\d+)?[<>]+[&|-]?)
    |(?P<array>[A-Za-z_]\w*\+?=\()
    |(?P<word>(?:\\.|'[^']*'|{_DOUBLE}|`[^`]*`|\$\{{{_BRACED}\}}|\$\({_OUTPUT}\)|[^\s;&|()<>'"`\\])+)
    |(?P<end>.)""",
    re.VERBOSE | re.DOTALL,
)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1([^\n]*)\n.*?(?:^\s*\2\s*$|\Z)", re.DOTALL | re.MULTILINE)
_EXPANSION = (
    r"\$\(\((?P<sum>.*?)\)\)|(?P<output>\$\(.*\)|`[^`]*`)"
    rf"|\$\{{(?P<braced>{_BRACED})\}}|\$(?P<name>[A-Za-z_]\w*|[0-9@*#?!-])"
)
_IN_DOUBLE = re.compile(rf'\\(?P<escaped>["\\$`])|{_EXPANSION}', re.DOTALL)
_IN_WORD = re.compile(rf"\\(?P<escaped>.)|'(?P<single>[^']*)'|(?P<double>{_DOUBLE})|{_EXPANSION}", re.DOTALL)
_PARAMETER = re.compile(r"([A-Za-z_]\w*|[0-9@*#?!-])(?:(:?[-=+?])(.*))?", re.DOTALL)
_ITEMS = re.compile(r'("?)\$(?:\{([A-Za-z_]\w*)\[[@*]\]\}|@|\*)\1')
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
    """Return the only training that a script starts.

    Args:
        name: name of the script, for messages.

    Raises:
        ConfigError: it starts none, or several.
    """
    found = [launch for launch in _Script().launches(script) if launch.trains]
    if not found:
        raise ConfigError(
            "no-training-command",
            f"{name} starts no training: no command runs a Python program with words such as data.train_batch_size=8.",
            "Name the script that has them; a YAML file ends in .yaml or .yml.",
        )
    if len(found) > 1:
        raise ConfigError(
            "several-training-commands", f"{name} starts {len(found)} trainings.", "Keep one in a copy of it."
        )
    return found[0]


class _UndecidedError(Exception):
    """The value of a word depends on the execution of the script. The message gives the reason."""


@dataclass(frozen=True)
class _Array:
    """An assignment such as ``DATA+=(a b)``."""

    name: str
    appends: bool
    items: list[str]


def _read_commands(script: str) -> Iterator[list[str | _Array]]:
    """Yield the simple commands of a script in order. Their words are not expanded."""
    without_comments = re.sub(r"^[ \t]*#.*$", "", script.replace("\r\n", "\n"), flags=re.MULTILINE)
    text = _HEREDOC.sub(r"\3\n", without_comments.replace("\\\n", ""))
    words: list[str | _Array] = []
    array: _Array | None = None
    is_target = False
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "redirection":
            is_target = True
        elif token.lastgroup == "array":
            name = token[0].removesuffix("=(")
            array = _Array(name.removesuffix("+"), name.endswith("+"), [])
        elif token.lastgroup == "word":
            if array is not None:
                array.items.append(token[0])
            elif not is_target:
                words.append(token[0])
            is_target = False
        elif token[0] == ")" and array is not None:
            words.append(array)
            array = None
        elif token.lastgroup == "end" and array is None:
            yield words
            words = []
    yield words


class _Script:
    """Goes through a script from top to bottom, once."""

    def __init__(self) -> None:
        self._variables: dict[str, str | list[str] | _UndecidedError] = {}
        """Variables that the script has set so far. Other variables come from the environment."""
        self._exported: dict[str, None] = {}
        self._depth = 0
        """Nesting depth of conditions and loops around the command."""

    def launches(self, script: str) -> Iterator[Launch]:
        for command in _read_commands(script):
            words = self._drop_keywords(command)
            is_assignment = [isinstance(word, _Array) or bool(_ASSIGNMENT.fullmatch(word)) for word in words]
            if words and words[0] in _DECLARES:
                self._declare(words)
            elif all(is_assignment):
                for word in words:
                    self._assign(word)
            else:
                first = is_assignment.index(False)
                launch = self._launch([word for word in words[first:] if isinstance(word, str)])
                if launch is not None:
                    given = (_ASSIGNMENT.fullmatch(word) for word in words[:first] if isinstance(word, str))
                    launch.environment.update({found[1]: self._expand_or_keep(found[3]) for found in given if found})
                    yield launch

    def _drop_keywords(self, words: Sequence[str | _Array]) -> Sequence[str | _Array]:
        while words and words[0] in (*_OPENS, *_CLOSES, *_GOES_ON):
            keyword, *words = words
            self._depth += (keyword in _OPENS) - (keyword in _CLOSES)
            if keyword == "for" and words:
                self._variables[str(words[0])] = _UndecidedError(f"`{words[0]}` counts a loop")
            if keyword in ("for", "case", "select"):
                return ()
        return words

    def _declare(self, words: Sequence[str | _Array]) -> None:
        for word in words[1:]:
            name = word.name if isinstance(word, _Array) else re.split(r"\+?=", word)[0]
            if name != word:
                self._assign(word)
            if words[0] == "export" and not name.startswith("-"):
                self._exported[name] = None

    def _assign(self, word: str | _Array) -> None:
        if isinstance(word, _Array):
            name, appends = word.name, word.appends
        else:
            name, plus, raw = _ASSIGNMENT.fullmatch(word).groups()  # type: ignore[union-attr]
            appends = bool(plus)
        value: str | list[str] | _UndecidedError
        try:
            if self._depth:
                raise _UndecidedError(f"`{name}` is set in a condition or a loop")
            before = self._items(name) if appends else []
            if isinstance(word, _Array):
                value = [*before, *(each for item in word.items for each in self._expand(item))]
            else:
                value = "".join([*before, self._text(raw)])
        except _UndecidedError as error:
            value = error
        self._variables[name] = value

    def _launch(self, words: Sequence[str]) -> Launch | None:
        arguments = [argument for word in words for argument in self._arguments(word)]
        at = _program_at([argument.text for argument in arguments])
        if at is None:
            return None
        return Launch(
            program=arguments[at].text,
            words=tuple(arguments[at + 1 :]),
            environment={name: self._expand_or_keep(f"${name}") for name in self._exported},
        )

    def _arguments(self, word: str) -> list[Word]:
        try:
            return [Word(text) for text in self._expand(word)]
        except _UndecidedError as error:
            return [Word(word, str(error))]

    def _expand_or_keep(self, raw: str) -> str:
        try:
            return self._text(raw)
        except _UndecidedError:
            return raw

    def _expand(self, raw: str) -> list[str]:
        """Return the arguments that a word becomes: several for an array, or for a variable without quotes."""
        if array := _ITEMS.fullmatch(raw):
            items = self._items(array[2]) if array[2] else []
            return items if array[1] else " ".join(items).split()
        text = self._text(raw)
        return text.split() if re.fullmatch(r"\$\w+|\$\{\w+\}", raw) else [text]

    def _text(self, raw: str) -> str:
        return _IN_WORD.sub(self._replace, raw)

    def _replace(self, found: re.Match[str]) -> str:
        kind, text = found.lastgroup, found[found.lastgroup or 0]
        if kind in ("escaped", "single"):
            return text
        if kind == "double":
            return _IN_DOUBLE.sub(self._replace, text[1:-1])
        if kind == "output":
            raise _UndecidedError("It is the output of a command")
        return str(self._sum(text)) if kind == "sum" else self._parameter(text)

    def _parameter(self, expression: str) -> str:
        """Return the value of ``NAME``, ``NAME:-default`` and other forms."""
        found = _PARAMETER.fullmatch(expression)
        if found is None:
            raise _UndecidedError(f"`${{{expression}}}` is not read")
        name, operator, word = found[1], (found[2] or "").strip(":"), found[3]
        value = next(iter(self._items(name)), None)
        if operator == "+":
            return self._text(word) if value else ""
        if value is not None and (value or not operator):
            return value
        if operator in ("-", "="):
            default = self._text(word)
            if operator == "=":
                self._variables[name] = default
            return default
        if not name.isidentifier():
            raise _UndecidedError(f"`${name}` is known when the script runs")
        return f"${{oc.env:{name}}}"

    def _items(self, name: str) -> list[str]:
        """Return the items of an array, or the only value of a variable. Empty if the script does not set it."""
        value = self._variables.get(name, [])
        if isinstance(value, _UndecidedError):
            raise value
        return value if isinstance(value, list) else [value]

    def _sum(self, text: str) -> int:
        numbers = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda found: "".join(self._items(found[1])), text)
        if not re.fullmatch(r"[\d\s()+*/%-]+", numbers) or "**" in numbers or numbers.isspace():
            raise _UndecidedError(f"The sum `{text.strip()}` is not read")
        try:
            return int(eval(numbers.replace("/", "//")))
        except (SyntaxError, ArithmeticError, TypeError) as error:
            raise _UndecidedError(f"The sum `{text.strip()}` is not read") from error


def _program_at(words: Sequence[str]) -> int | None:
    """Return the index of the argument with the Python module or file. None if there is none."""
    for index, word in enumerate(words):
        if word == "-m" and index + 1 < len(words):
            return index + 1
        if word.endswith(".py") and "=" not in word:
            return index
    return None
