"""What all `register_rllm_…` decorators share."""

from __future__ import annotations

from collections.abc import Callable, Set
from enum import Enum
from inspect import getdoc
from typing import Any, TypeVar

from rllm_core.contracts.chosen import Registered
from rllm_core.contracts.plugin import Plugin
from rllm_core.errors import PluginError
from rllm_core.plugins import in_process
from rllm_core.plugins.registry import Registry

ThingT = TypeVar("ThingT", bound=Callable[..., Any])

NONE: frozenset[str] = frozenset()


def plain_name(name: str) -> str:
    """A name, also where it is given as a member of an enumeration of names."""
    return str(name.value) if isinstance(name, Enum) else name


def offering(record_class: type[Plugin[Any]], name: str, summary: str, **fields: Any) -> Callable[[ThingT], ThingT]:
    """A decorator that makes what it stands above the implementation of a record with these fields."""

    def record(thing: Any) -> Plugin[Any]:
        given = {field: frozen(value) for field, value in fields.items()}
        return record_class(name=name, summary=summary or summary_of(thing), load=lambda: thing, **given)

    return registering(f"register_rllm_{record_class.kind}", name, record)


def registering(decorator: str, name: object, record: Callable[[Any], Plugin[Any]]) -> Callable[[ThingT], ThingT]:
    """A decorator that registers the record of what it stands above.

    Raises:
        PluginError: the name is none, or (when it is applied) the record is unusable or the name is taken.
    """
    if not isinstance(name, str):
        # Without this, `@register_rllm_loss` without a name would put a decorator in place of the function.
        raise PluginError(
            "bad-plugin-spec", f"{decorator} is given {name!r:.80}, and no name.", f'Write @{decorator}("NAME").'
        )

    def register(thing: ThingT) -> ThingT:
        in_process.register(record(thing), f"{_of(thing, '__module__')}.{_of(thing, '__qualname__')}")
        return thing

    return register


def _of(thing: object, attribute: str) -> str:
    """Where a function or class is written; of another callable, where its class is."""
    return str(getattr(thing, attribute, None) or getattr(type(thing), attribute))


def summary_of(thing: object) -> str:
    """The first line of its docstring."""
    return (getdoc(thing) or "").strip().partition("\n")[0].strip() or f"{_of(thing, '__qualname__')} of this process."


def frozen(value: Any) -> Any:
    """A set as a frozen one."""
    # What is no set is left as it is, for the check of the record to name it.
    return frozenset(value) if isinstance(value, Set) else value


def found(kind: str, name: str) -> Registered[Any]:
    """What is registered or installed.

    Raises:
        PluginError: there is not exactly one of this name.
    """
    return Registry.load().get(kind, name)
