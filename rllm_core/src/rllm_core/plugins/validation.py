"""Checks that a plugin spec is valid for its kind, before any code uses it."""

from __future__ import annotations

import re
from typing import Any, get_args

from pydantic import BaseModel

from rllm_core.contracts.estimator import Level, Scope
from rllm_core.contracts.plugin import Plugin
from rllm_core.plugins.discovery import UnusablePluginError
from rllm_core.plugins.kinds import KINDS

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""The rule for names of all kinds. It excludes ``-``, so that a name has one spelling and differs from a package
name."""

NOT_NAMES = frozenset({"null", "true", "false", "yes", "no", "on", "off"})
"""Names that YAML does not parse as strings."""

_NAME_SETS = ("needs", "reads", "writes", "config_keys", "compares", "suffixes")
_ONE_OF = {"level": get_args(Level), "scope": get_args(Scope)}


def check_record(kind: str, record: object) -> Plugin[Any]:
    """Return `record` as a plugin spec of `kind`.

    Raises:
        UnusablePluginError: the spec is invalid.
    """
    hook, record_class = KINDS[kind]
    if not isinstance(record, record_class):
        wanted = f"it must return {record_class.__name__} records"
        raise UnusablePluginError(f"{hook} returned {_describe(record)}; {wanted}")
    subject = f"{record_class.__name__} {record.name!r}"
    if not isinstance(record.name, str) or not NAME.fullmatch(record.name):
        raise UnusablePluginError(f"{subject}: a name is lower-case letters, digits and '_', beginning with a letter")
    if record.name in NOT_NAMES:
        raise UnusablePluginError(f"{subject}: YAML reads this name as another kind of value; choose a different one")
    _check_line(subject, "summary", record.summary)
    if record.deprecated is not None:
        _check_line(subject, "deprecated", record.deprecated)
    if not (isinstance(record.params, type) and issubclass(record.params, BaseModel)):
        raise UnusablePluginError(f"{subject}: params must be a pydantic model class, not {_describe(record.params)}")
    if not callable(record.load):
        raise UnusablePluginError(f"{subject}: load must be a function without arguments, not {_describe(record.load)}")
    if record.family_option is not None and record.family_option not in record.params.model_fields:
        raise UnusablePluginError(f"{subject}: family_option is {record.family_option!r}, which params does not have")
    if kind == "backend" and "rllm" in record.params.model_fields:
        raise UnusablePluginError(f"{subject}: the section `rllm` is the core's; params must not have a field `rllm`")
    if kind == "reward" and "weight" in record.params.model_fields:
        raise UnusablePluginError(f"{subject}: the core uses the key `weight` itself; params must not have that field")
    if kind == "environment" and record.name == "custom":
        raise UnusablePluginError(f"{subject}: `custom` means no environment; choose a different name")
    for field in _NAME_SETS:
        names: object = getattr(record, field, frozenset())
        if not isinstance(names, frozenset) or not all(isinstance(name, str) for name in names):
            raise UnusablePluginError(f"{subject}: {field} must be a frozenset of names, not {names!r}")
    for field, values in _ONE_OF.items():
        value = getattr(record, field, values[0])
        if value not in values:
            raise UnusablePluginError(f"{subject}: {field} must be one of {', '.join(values)}, not {value!r}")
    return record


def _check_line(subject: str, field: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip() or len(text.splitlines()) != 1:
        raise UnusablePluginError(f"{subject}: {field} must be one line of text, not {text!r}")


def _describe(value: object) -> str:
    if isinstance(value, Plugin):
        return f"the {type(value).__name__} {value.name!r}"
    return f"the class {value.__name__}" if isinstance(value, type) else f"{value!r} ({type(value).__name__})"
