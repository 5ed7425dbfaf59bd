"""Read one ``key=value`` override of a command line with Hydra's grammar. Numbers follow YAML 1.2, as in files."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from rllm.config.yaml_text import number
from rllm_core.errors import ConfigError

BACKEND_GROUP = "rllm/backend"
QUOTING = (
    "Write key=value. A value with characters that mean something to Hydra goes in quotes, and the whole word in those "
    "of the shell: 'key=\"a=b\"'."
)
_LONGEST = 120
_WITH_UNDERSCORES = r"[-+]?[0-9.]*[0-9]_[0-9][0-9_.]*(?:[eE][-+]?[0-9]+)?"


def read_override(word: str) -> tuple[str, Any]:
    """Return the dotted key and the value of an override.

    Raises:
        ConfigError: it is not an override, or not one for a single run (a sweep, a deletion, a config group).
    """
    from hydra.errors import HydraException

    if "=" not in word.lstrip("~") and not word.startswith("~"):
        raise ConfigError(
            "bad-override",
            f"`{_short(word)}` is not an override.",
            f"Write key=value, such as rllm.rollout.n=4. For a run, rllm.trainer.experiment_name={_short(word)}.",
        )
    try:
        override = _parser().parse_override(word.strip())
        value = override.value()
    except (HydraException, RecursionError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).partition("\\nSee ")[0].split())
        raise ConfigError(
            "bad-override", f"`{_short(word)}` is not an override that Hydra can read: {reason[:200]}.", QUOTING
        ) from error
    if override.is_delete():
        raise ConfigError(
            "bad-override",
            f"`{_short(word)}` would delete a key, which is not possible.",
            "Remove it to get the default, or write KEY=null.",
        )
    if override.is_sweep_override():
        raise ConfigError(
            "bad-override",
            f"`{_short(word)}` is a sweep over several values.",
            "Start one run per value. Write a list in brackets.",
        )
    key = str(override.key_or_group).strip()
    if not key:
        raise ConfigError(
            "bad-override", f"`{_short(word)}` is not an override.", "Write key=value, such as rllm.rollout.n=4."
        )
    if key == BACKEND_GROUP:
        key = "rllm.backend"
    if "/" in key or override.package is not None:
        raise ConfigError(
            "bad-override",
            f"`{_short(word)}` uses the config group `{key}`, which does not exist.",
            f"The only group is {BACKEND_GROUP}. Write a key as names joined by dots.",
        )
    given = word.partition("=")[2]
    if any(mark in given for mark in "'\"("):  # quoted, or made by a Hydra function: do not convert
        return key, value
    _refuse_odd_groups(word, given)
    # For Hydra, numbers with leading zeros and numbers in other bases are text.
    return key, _with_numbers(value)


def _refuse_odd_groups(word: str, given: str) -> None:
    """Reject numbers such as ``1_0``. For Hydra it is 10, but it is usually a typo for 1.0."""
    for part in re.split(r"[,\[\]{}:]" if "{" in given else r"[,\[\]]", given):
        if re.fullmatch(_WITH_UNDERSCORES, part.strip()) and number(part.strip()) is None:
            raise ConfigError(
                "bad-override",
                f"`{_short(word)}` contains {part.strip()}, which is a number for Hydra and text for YAML.",
                "Write digits in groups of three (1_000) or without `_`. Put text into quotes: 'key=\"1_0\"'.",
            )


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    found = number(value) if isinstance(value, str) else None
    return value if found is None else found


@cache
def _parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def _short(word: str) -> str:
    return word if len(word) <= _LONGEST else word[: _LONGEST - 1] + "…"
