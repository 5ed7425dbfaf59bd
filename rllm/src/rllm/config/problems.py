"""Messages for errors in a configuration: the key, its value, the expected value, and the closest known key."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from rllm.config.keys import choice_keys, plugin_keys
from rllm.config.layers import COMMAND_LINE
from rllm.config.paths import KeyPath, split_key
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

ModelT = TypeVar("ModelT", bound=BaseModel)
OriginOf = Callable[[KeyPath], str]
_IN_URL = re.compile(r"(?<=://)[^/@\s\"]+(?=@)")
LONGEST_VALUE = 60
MOST_MEANT = 4
"""Maximum number of keys in a hint."""
_MOST_OWNERS = 4
"""Maximum number of plugins in a hint about an option."""
MOST_SHOWN = 50
"""Maximum number of problems in a message. Finding the closest key takes about a millisecond per problem."""


class ConfigLine(NamedTuple):
    """A line about one key of a configuration."""

    code: str
    """The short name of the mistake, as of an `RllmError`."""
    text: str
    hint: str = ""
    """Text to type instead."""


EXPECTED_BY_TYPE = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "none_required": "null",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dataclass_type": "a mapping",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "string_pattern_mismatch": "text that matches the pattern {pattern}",
}


def parse(model: type[ModelT], values: Mapping[str, Any]) -> ModelT:
    """Validate values read from YAML in strict mode: the text "8" is not a number, and 1 is neither true nor text.

    The values are validated as JSON, so that tuples, paths and enumerations may be written as lists and text.
    """
    return model.model_validate_json(json.dumps(values), strict=True)


def describe(
    error: ValidationError, values: Mapping[str, Any], origin: OriginOf, keys: Sequence[KeyPath], at: KeyPath = ()
) -> list[ConfigLine]:
    """Return one line per problem.

    `values` are the validated values and `keys` are all keys of the whole schema. `at` is the section that contains
    `values`, or empty for the top level.
    """
    unknown: list[ConfigLine] = []
    wrong: dict[KeyPath, tuple[Any, list[ErrorDetails]]] = {}
    details = error.errors(include_url=False)
    for detail in details[:MOST_SHOWN]:
        path = at + _path(detail, values)
        if detail["type"] == "extra_forbidden":
            unknown.append(unknown_key(path, origin(path), keys, detail["input"]))
        elif detail["type"] == "missing":
            text = f"`{_join_key(path)}` has no value, and must have one."
            unknown.append(ConfigLine("missing-key", text, f"Add {_join_key(path)}=VALUE, or set it in a file."))
        else:
            # The variants of a union (a number, or the text "none") each report their own error.
            wrong.setdefault(path, (detail["input"], []))[1].append(detail)
    lines = [
        ConfigLine("wrong-value", f"{wrong_value(path, value, origin(path))}: {_reasons(why)}.", _explain(path, keys))
        for path, (value, why) in wrong.items()
    ]
    left_out = len(details) - MOST_SHOWN
    rest = [ConfigLine("wrong-value", f"{left_out} more are not shown.")] if left_out > 0 else []
    return [*dict.fromkeys(unknown + lines), *rest]


def _explain(path: KeyPath, keys: Sequence[KeyPath]) -> str:
    return f"`rllm config explain {_join_key(path)}` explains the key." if path in keys else ""


def as_config_error(lines: Sequence[ConfigLine], hint: str = "") -> ConfigError:
    """Return one error for all problems, with the code of the first, and one line for each."""
    if len(lines) == 1:
        return ConfigError(lines[0].code, lines[0].text, " ".join(filter(None, (lines[0].hint, hint))))
    texts = [" ".join(filter(None, (line.text, line.hint))) for line in lines]
    return ConfigError(lines[0].code, "\n".join([f"{len(lines)} problems in the configuration:", *texts]), hint)


def wrong_value(path: KeyPath, value: Any, origin: str) -> str:
    """Return the beginning of a message about a value: `` `rllm.rollout.n` is "many" (from my.yaml)``."""
    return f"`{_join_key(path) or 'the configuration'}` is {show_value(value)} (from {origin})"


def show_value(value: Any) -> str:
    """Return a value as JSON, shortened. The user and the key in a URL are replaced by ``***``."""
    shown = _IN_URL.sub("***", json.dumps(value, ensure_ascii=False, default=str))
    return shown if len(shown) <= LONGEST_VALUE else shown[: LONGEST_VALUE - 1] + "…"


def typed_value(value: Any) -> str:
    """Return ``=VALUE`` to type after a key. Empty for a value that is long, nested, or may contain a password."""
    text = value if isinstance(value, str) else json.dumps(value)
    plain = not isinstance(value, dict | list) and len(text) <= LONGEST_VALUE
    return f"={shlex.quote(text)}" if plain and not _IN_URL.search(text) else ""


def expected_mapping(path: KeyPath, value: Any, origin: str) -> ConfigError:
    """Return the error for a section that has a plain value."""
    place = _join_key(path)
    return ConfigError(
        "wrong-value",
        f"{wrong_value(path, value, origin)}: expected a mapping.",
        f"Write `{place}.KEY=VALUE`, or remove it. `rllm config explain {place}` lists the keys.",
    )


def unknown_key(path: KeyPath, origin: str, keys: Sequence[KeyPath], value: Any = None) -> ConfigLine:
    """Return the line for a key that no schema has. Its hint has the closest known keys, or a command that lists keys.

    `value` is the key's value. The hint repeats it if it was typed on the command line.
    """
    name, section = path[-1], path[:-1]
    siblings = [key[-1] for key in keys if key[:-1] == section]
    typed = typed_value(value) if origin == COMMAND_LINE else ""
    meant = _find_similar_keys(name, section, siblings, keys)
    hint = f"Write {' or '.join(f'`{_join_key(key)}{typed}`' for key in meant)}." if meant else ""
    if "." in name and split_key(name) in keys:
        hint = f"Write it as nested mappings, or as {name}=VALUE on the command line."
    if section:
        place = _join_key(section)
        return ConfigLine(
            "unknown-key",
            f"`{name}` is not a key of {place} (`{_join_key(path)}` from {origin}).",
            hint or f"`rllm config explain {place}` lists its keys.",
        )
    sections = {key[0] for key in keys if len(key) > 1}
    kind = "neither a section nor a key" if set(siblings) - sections else "not a section"
    return ConfigLine(
        "unknown-key",
        f"`{name}` is {kind} of the configuration (from {origin}).",
        hint or f"Use a key of {', '.join(sorted(siblings))}. `rllm config explain rllm` lists the keys of rllm.",
    )


def option_hints(error: ValidationError, registry: Registry) -> Iterator[str]:
    """Yield a hint for each unknown key that is an option of the plugin of its section, with the key that sets it."""
    for detail in error.errors(include_url=False):
        path = tuple(str(part) for part in detail["loc"])
        if detail["type"] != "extra_forbidden" or not path:
            continue
        for key, kind in plugin_keys(RunConfig).items():
            if key[:-1] != path[:-1] or key not in choice_keys(RunConfig):
                continue
            if owners := [each.plugin.name for each in registry.all(kind) if _has_option(each.plugin, path[-1])]:
                yield _option_hint(path[-1], kind, ".".join(key), owners, detail["input"])


def _find_similar_keys(name: str, section: KeyPath, siblings: Sequence[str], keys: Sequence[KeyPath]) -> list[KeyPath]:
    """Return the keys that were probably meant: a sibling, the same name elsewhere, or a similar one there."""
    close = [(*section, match) for match in get_close_matches(name, siblings, n=1, cutoff=0.6)]
    same = [key for key in keys if key[-1] == name]
    if close or same:
        return [*close, *same]
    longer = [key for key in keys if key[-1].endswith(f"_{name}")]
    if longer:
        return longer[:MOST_MEANT]
    names = {key[-1] for key in keys}
    similar = get_close_matches(name, names, n=2, cutoff=0.75)
    similar += [known for known in names if "_" in known and _initials(known) == name]
    return [key for key in keys if key[-1] in similar][:MOST_MEANT]


def _reasons(details: Sequence[ErrorDetails]) -> str:
    expected, others = [], []
    for detail in details:
        context = detail.get("ctx", {})
        if (template := EXPECTED_BY_TYPE.get(detail["type"])) is not None:
            expected.append(template.format(**context))
        else:
            # Words of a plugin's own validator, which pydantic puts behind "Value error, ".
            others.append(str(context.get("error", detail["msg"])).rstrip("."))
    variants = [f"expected {' or '.join(dict.fromkeys(expected))}"] if expected else []
    return "; ".join([*variants, *dict.fromkeys(others)])


def _path(detail: ErrorDetails, values: Mapping[str, Any]) -> KeyPath:
    """Return the key path of an error. Pydantic adds names of union variants (`str`, `dict[str,any]`) to it."""
    path: list[str] = []
    node: Any = values
    *parts, last = detail["loc"] or ("",)
    for part in parts:
        if isinstance(node, dict) and part in node:
            node = node[str(part)]
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            continue
        path.append(str(part))
    within = (isinstance(node, dict) and last in node) or (isinstance(node, list) and isinstance(last, int))
    if within or (detail["type"] == "missing" and last != ""):
        path.append(str(last))
    return tuple(path)


def _initials(name: str) -> str:
    return "".join(word[:1] for word in name.split("_"))


def _join_key(path: KeyPath) -> str:
    return ".".join(path)


def _option_hint(name: str, kind: str, where: str, owners: Sequence[str], value: Any) -> str:
    more = f" and {len(owners) - _MOST_OWNERS} more" if len(owners) > _MOST_OWNERS else ""
    choice = f"{{name: {owners[0]}, {name}: {show_value(value)}}}"
    return f"`{name}` is an option of {kind} {', '.join(owners[:_MOST_OWNERS])}{more}: write {where}='{choice}'."


def _has_option(plugin: Any, option: str) -> bool:
    return option in plugin.params.model_fields
