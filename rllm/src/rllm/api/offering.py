"""Helpers that all `register_rllm_…` decorators share."""

from __future__ import annotations

from collections.abc import Callable, Set
from enum import Enum
from inspect import getdoc
from typing import Any, TypeVar

from rllm_core.contracts.plugin import Plugin
from rllm_core.errors import PluginError
from rllm_core.plugins.registry import register_in_process

ThingT = TypeVar("ThingT", bound=Callable[..., Any])

NONE: frozenset[str] = frozenset()


def plain_name(name: str) -> str:
    """Return a name as text. A member of an enumeration gives its value."""
    return str(name.value) if isinstance(name, Enum) else name


def offering(record_class: type[Plugin[Any]], name: str, summary: str, **fields: Any) -> Callable[[ThingT], ThingT]:
    """Return a decorator that registers the decorated object as a plugin, whose spec has these fields."""

    def record(thing: Any) -> Plugin[Any]:
        given = {field: frozen(value) for field, value in fields.items()}
        return record_class(name=name, summary=summary or read_summary(thing), load=lambda: thing, **given)

    return registering(f"register_rllm_{record_class.kind}", name, record)


def registering(decorator: str, name: object, record: Callable[[Any], Plugin[Any]]) -> Callable[[ThingT], ThingT]:
    """Return a decorator that registers the plugin spec of the decorated object.

    Raises:
        PluginError: `name` is not text. When the decorator is applied: the spec is invalid, or the name is taken.
    """
    if not isinstance(name, str):
        # Without this check, `@register_rllm_loss` without a name would replace the function by a decorator.
        raise PluginError(
            "bad-plugin-spec", f"{decorator} needs a name, and got {name!r:.80}.", f'Write @{decorator}("NAME").'
        )

    def register(thing: ThingT) -> ThingT:
        register_in_process(
            record(thing), f"{_read_attribute(thing, '__module__')}.{_read_attribute(thing, '__qualname__')}"
        )
        return thing

    return register


def _read_attribute(thing: object, attribute: str) -> str:
    """Return an attribute of a function or class, such as its module. For another callable, use its class."""
    return str(getattr(thing, attribute, None) or getattr(type(thing), attribute))


def read_summary(thing: object) -> str:
    """Return the first line of its docstring, or its name if it has none."""
    line = (getdoc(thing) or "").strip().partition("\n")[0].strip()
    return line or f"{_read_attribute(thing, '__qualname__')} of this process."


def frozen(value: Any) -> Any:
    """Return a set as a frozenset."""
    # Keep a value that is not a set unchanged, so that the check of the plugin spec reports it.
    return frozenset(value) if isinstance(value, Set) else value
