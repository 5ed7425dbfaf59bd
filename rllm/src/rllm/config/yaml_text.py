"""YAML 1.2 (its core schema) as text of configurations, with a bound on its size.

PyYAML reads YAML 1.1, which takes ``010`` for 8, ``1:30`` for 90 and ``no`` for false. Beyond YAML 1.2, ``1_000`` is a
number as on a command line (``1_0`` is text: underscores part groups of three digits), and ``<<`` merges mappings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from rllm_core.errors import ConfigError

LONGEST = 1 << 20
"""Most characters of a file. A configuration names files of data and does not hold them."""
DEEPEST = 64
"""Most levels of a configuration. Real ones have five; a YAML anchor that contains itself has no end."""
MOST_VALUES = 20_000
"""Most keys and values of a source of values, repeated ones (YAML's aliases) counted as often as they occur."""
_TAG = "tag:yaml.org,2002:"
_DIGITS = r"(?:[0-9]{1,3}(?:_[0-9]{3})+|[0-9]+)"
_INT = rf"[-+]?{_DIGITS}|0o[0-7]+|0x[0-9a-fA-F]+"
_FLOAT = (
    rf"[-+]?(?:\.{_DIGITS}|{_DIGITS}(?:\.(?:{_DIGITS})?)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_PLAIN = (
    ("null", "~|null|Null|NULL|", ("~", "n", "N", "")),
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("merge", "<<", "<"),
)
"""Tag, text and first characters of plain scalars that are no text."""
_UNICODE_LINE_BREAKS = "\x85\u2028\u2029"


def read_yaml(text: str, name: str) -> Any:
    """Return the values of a YAML text.

    Args:
        name: name of the source, for messages.

    Raises:
        ConfigError: it is not YAML, has a key twice, or is too large.
    """
    import yaml

    if len(text) > LONGEST:
        raise ConfigError(
            "config-too-large",
            f"`{name}` has {len(text)} characters, and a configuration at most {LONGEST}.",
            _TOO_LARGE,
        )
    try:
        _require_small(text, name)
        return yaml.load(text, Loader=_loader())  # a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        raise yaml_error(error, name) from error
    except RecursionError:
        raise ConfigError(
            "nested-too-deeply", f"YAML error in {name}: nested too deeply.", "Give it fewer levels."
        ) from None
    except (yaml.YAMLError, ValueError, LookupError, TypeError) as error:
        # Explicit tags (`!!int x`) and numbers of absurd length fail inside the reader with Python's own errors.
        raise ConfigError(
            "yaml-error", f"YAML error in {name}: {error}.", "Remove the tag or number, or put it in quotes."
        ) from error


def number(text: str) -> int | float | None:
    """Return the number that a plain scalar means. None if it is not a number."""
    if re.fullmatch(_INT, text):
        plain = text.replace("_", "")
        return int(plain, 0) if plain[:2] in ("0o", "0x") else int(plain)
    if re.fullmatch(_FLOAT, text):
        # `.inf` and `.nan` are Python's without the dot.
        return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    return None


def as_yaml(tree: Mapping[str, Any]) -> str:
    """Return plain values as text with the same meaning in YAML 1.1 and 1.2, except for numbers such as 1e-05."""
    import yaml

    text: str = yaml.dump(dict(tree), Dumper=_dumper(), allow_unicode=True, sort_keys=False)
    return text


def yaml_error(error: Any, name: str) -> ConfigError:
    """Return an error with the YAML reader's message (a `MarkedYAMLError`) and its position in the file."""
    mark = error.problem_mark or error.context_mark
    place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return ConfigError(
        "yaml-error",
        f"YAML error in {name}{place}: {error.problem or error.context}.",
        "Correct that line, for example its indentation, colon or quotes.",
    )


_TOO_LARGE = "Put data into a separate file, and give its path in the config."


def too_large(name: str) -> ConfigError:
    """Return the error for a source with more than `MOST_VALUES` keys and values."""
    return ConfigError("config-too-large", f"`{name}` contains more than {MOST_VALUES} keys and values.", _TOO_LARGE)


def _require_small(text: str, name: str) -> None:
    """Check size and depth event by event, because PyYAML's loader recurses, in C code without a depth limit."""
    import yaml

    sizes: dict[str | None, int] = {}
    """Number of values below each anchor. An alias counts as that many values."""
    around: list[tuple[str | None, int]] = []
    count = 0
    for event in yaml.parse(text, Loader=_loader()):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = around.pop()
            sizes[anchor] = count - before
        else:
            count += sizes.get(event.anchor, 1) if isinstance(event, yaml.AliasEvent) else 1
        if isinstance(event, yaml.CollectionStartEvent):
            around.append((event.anchor, count))
        if len(around) > DEEPEST:
            raise ConfigError(
                "nested-too-deeply",
                f"YAML error in {name}: nested deeper than {DEEPEST} levels.",
                "Give it fewer levels.",
            )
        if count > MOST_VALUES:
            raise too_large(name)


@cache
def _loader() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys: set[str] = set()
            for key, _ in node.value:
                if key.tag != f"{_TAG}str":
                    continue
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(
                        problem=f"found duplicate key {key.value}", problem_mark=key.start_mark
                    )
                keys.add(key.value)
            return super().construct_mapping(node, deep=deep)

        def construct_number(self, node: Any) -> int | float:
            text = self.construct_scalar(node)
            value = number(text)
            if value is None:
                raise ValueError(f"{text!r} is no number")
            return float(value) if node.tag == f"{_TAG}float" else value

    for tag, pattern, first in _PLAIN:
        Loader.add_implicit_resolver(_TAG + tag, re.compile(f"(?:{pattern})$"), list(first))
    for tag in ("int", "float"):
        Loader.add_constructor(_TAG + tag, Loader.construct_number)
    return Loader


@cache
def _dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True  # the same list in two places is written twice, not as `&id001` and `*id001`

        def represent_text(self, text: str) -> Any:
            # Line breaks of Unicode come back as spaces in other styles.
            style = '"' if any(letter in text for letter in _UNICODE_LINE_BREAKS) else None
            return self.represent_scalar(f"{_TAG}str", text, style=style)

    Dumper.add_representer(str, Dumper.represent_text)
    # Text is quoted where YAML 1.1, whose resolvers SafeDumper has, or YAML 1.2 would take it for something else.
    for tag, pattern, first in _PLAIN:
        Dumper.add_implicit_resolver(_TAG + tag, re.compile(f"(?:{pattern})$"), list(first))
    return Dumper
