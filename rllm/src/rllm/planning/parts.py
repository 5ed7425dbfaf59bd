"""Estimators that consist of other estimators, such as `mix`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.estimator import Scope
from rllm_core.errors import ConfigError
from rllm_core.schema.section import Choice, Names

ESTIMATOR = "estimator"


def resolve_parts(
    choice: PluginChoice[Any], pick: Callable[[str, Choice, str], PluginChoice[Any]], where: str
) -> PluginChoice[Any]:
    """Return the choice with its parts resolved, if an option of the estimator has the mark `Names`.

    The parts get values of shared config keys, as other estimators do. The plugin spec gets the parts' needs and
    the widest scope.

    Raises:
        ConfigError: a part is unknown, has a wrong option, or has the scope ``batch``.
    """
    names = [
        name
        for name, field in type(choice.params).model_fields.items()
        if any(isinstance(mark, Names) and mark.kind == ESTIMATOR for mark in field.metadata)
    ]
    if not names:
        return choice
    (name,) = names
    entries = getattr(choice.params, name)
    parts = [pick(ESTIMATOR, entry, f"{where}.{name}[{number}]") for number, entry in enumerate(entries)]
    for part in parts:
        if part.plugin.scope == "batch":
            raise ConfigError(
                "bad-choice",
                f"{where}.{name}: estimator {part.plugin.name!r} compares roles, and parts receive one role at a time.",
                "Choose an estimator whose scope is not `batch`.",
            )
    resolved = [{"name": part.qualified_name, **part.params.model_dump(mode="json")} for part in parts]
    plugin = replace(
        choice.plugin,
        needs=frozenset[str]().union(*(part.plugin.needs for part in parts)),
        scope=max((part.plugin.scope for part in parts), key=get_args(Scope).index),
    )
    return replace(
        choice,
        registered=replace(choice.registered, plugin=plugin),
        params=choice.params.model_copy(update={name: resolved}),
    )
