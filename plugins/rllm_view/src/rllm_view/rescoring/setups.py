"""Setups: the estimators that are compared, one for all roles and others for some, as a run would choose them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from rllm.planning import ByRole, resolve_parts
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.estimator import ALWAYS_FILLED, FILLED_BY_STAGES, EstimatorPlugin
from rllm_core.errors import ConfigError
from rllm_core.plugins.choice import choose, shared_options
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import ROLE_LOSS, Choice

STORED = frozenset({"old_logprobs"}) | ALWAYS_FILLED | FILLED_BY_STAGES
"""Needs that stored episodes can fill. Sampling log-probs are used as log-probs at the start of an update."""
GREEDY_REWARDS = "greedy_rewards"
RUN_ESTIMATOR = "rllm.algorithm.adv_estimator"
RUN_MAP = "rllm.algorithm.estimator_map"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Which estimator each role has."""

    label: str
    """Unique among the setups of one comparison."""
    estimators: ByRole[PluginChoice[EstimatorPlugin[Any]]]
    of_run: bool
    """True if these are the estimators from the run's training."""


@dataclass(frozen=True, kw_only=True)
class Picker:
    """Lookup of plugins, as in a run with this configuration, including options of shared keys."""

    registry: Registry
    config: RunConfig

    def pick(self, kind: Literal["estimator", "grouping", "rejection"], choice: Choice, where: str) -> Any:
        """A plugin with its options.

        Raises:
            ConfigError: the name or an option is unknown, or the plugin needs what stored episodes do not hold.
        """
        chosen = self._choose(kind, choice, where)
        if isinstance(chosen.plugin, EstimatorPlugin):
            self._require_stored(chosen.registered, where)
        return chosen

    def played_greedily(self) -> bool:
        """True if an installed estimator of the configuration needs greedy rollouts."""
        algorithm = self.config.rllm.algorithm
        needs: set[str] = set()
        for choice in (algorithm.adv_estimator, *algorithm.estimator_map.values()):
            with suppress(ConfigError):
                needs |= self._choose("estimator", _without_loss(choice), RUN_ESTIMATOR).plugin.needs
        return GREEDY_REWARDS in needs

    def _choose(self, kind: str, choice: Choice, where: str) -> PluginChoice[Any]:
        chosen = choose(self.registry, kind, choice, where, shared_options(self.config, kind))
        return resolve_parts(chosen, self._choose, where) if kind == "estimator" else chosen

    def _require_stored(self, entry: Registered[Any], where: str) -> None:
        missing = sorted(entry.plugin.needs - STORED)
        if not missing:
            return
        possible = [other.name for other in self.registry.all(entry.kind) if other.plugin.needs <= STORED]
        raise ConfigError(
            "missing-estimator-input",
            f"{where}: {entry.kind} {entry.name!r} needs {', '.join(missing)}, which training computes with a model "
            "and episodes do not store.",
            f"Choose from {', '.join(possible)}.",
        )


def setups_of(
    picker: Picker, estimators: Sequence[Choice], role_estimators: Mapping[str, Choice], *, of_run: bool
) -> tuple[list[Setup], str]:
    """Return the setups to compare, the reference first, and why the configuration's own setup is missing, if it is.

    Args:
        picker: its configuration's estimators are the reference if `estimators` has fewer than two.
        estimators: one setup each, for every role that is not in `role_estimators`.
        role_estimators: estimators by role, in all setups except the run's own.
        of_run: True if the picker's configuration comes from the same run as the episodes.

    Raises:
        ConfigError: see `Picker.pick`, or a setup appears twice, or no estimator is left.
    """
    roles = {
        role: picker.pick("estimator", choice, f"--role-estimator {role}") for role, choice in role_estimators.items()
    }
    setups = [
        _setup(ByRole(picker.pick("estimator", choice, "--estimator"), roles), of_run=False) for choice in estimators
    ]
    if not setups and roles:
        setups = [_own_setup(picker, roles, of_run=False)]
    try:
        own = _own_setup(picker, {}, of_run=of_run)
    except ConfigError as error:
        if not setups:
            raise
        return _told_apart(setups), error.message if len(setups) < 2 else ""
    if len(setups) >= 2:
        return _told_apart([replace(setup, of_run=of_run and _same(setup, own)) for setup in setups]), ""
    return _told_apart([own, *(setup for setup in setups if not _same(setup, own))]), ""


def label_of(chosen: PluginChoice[Any]) -> str:
    """``grpo``, or ``grpo(norm_adv_by_std_in_grpo=false)`` with the options that are not the plugin's defaults."""
    options = chosen.params.model_dump(mode="json", exclude_defaults=True)
    shown = ", ".join(f"{name}={json.dumps(value)}" for name, value in options.items())
    return f"{chosen.plugin.name}({shown})" if shown else str(chosen.plugin.name)


def _own_setup(picker: Picker, instead: Mapping[str, PluginChoice[EstimatorPlugin[Any]]], *, of_run: bool) -> Setup:
    """The estimators of the configuration, rllm-core's defaults where there is no run, but for some roles."""
    algorithm = picker.config.rllm.algorithm
    try:
        by_role = {
            role: picker.pick("estimator", _without_loss(choice), f"{RUN_MAP}.{role}")
            for role, choice in algorithm.estimator_map.items()
            if role not in instead
        }
        default = picker.pick("estimator", algorithm.adv_estimator, RUN_ESTIMATOR)
    except ConfigError as error:
        hint = "Name it with --estimator NAME, or --role-estimator ROLE=NAME."
        raise ConfigError(error.code, error.message, f"{error.hint} {hint}") from error
    return _setup(ByRole(default, {**by_role, **instead}), of_run=of_run)


def _same(one: Setup, other: Setup) -> bool:
    """True if every role has the same estimator with the same options."""
    roles = {*one.estimators.by_role, *other.estimators.by_role}
    pairs = [(one.estimators.get(role), other.estimators.get(role)) for role in roles]
    pairs.append((one.estimators.default, other.estimators.default))
    return all((a.registered.qualified_name, a.params) == (b.registered.qualified_name, b.params) for a, b in pairs)


def _without_loss(choice: Choice) -> Choice:
    if isinstance(choice, str):
        return choice
    return {key: value for key, value in choice.items() if key != ROLE_LOSS}


def _setup(estimators: ByRole[PluginChoice[EstimatorPlugin[Any]]], *, of_run: bool) -> Setup:
    default = label_of(estimators.default)
    others = {role: label_of(chosen) for role, chosen in estimators.by_role.items()}
    parts = [default, *(f"{role}: {label}" for role, label in others.items() if label != default)]
    return Setup(label=", ".join(parts), estimators=estimators, of_run=of_run)


def _told_apart(setups: Sequence[Setup]) -> list[Setup]:
    """Return setups with unique labels. Plugins with the same name get their qualified names as labels."""
    labels = [setup.label for setup in setups]
    apart = [replace(setup, label=_qualified(setup)) if labels.count(setup.label) > 1 else setup for setup in setups]
    for index, setup in enumerate(apart):
        if setup.label in [other.label for other in apart[:index]]:
            raise ConfigError(
                "duplicate-choice",
                f"--estimator: {setup.label} is given twice.",
                "Remove it, or set a different option.",
            )
    return apart


def _qualified(setup: Setup) -> str:
    return f"{setup.estimators.default.registered.distribution}/{setup.label}"
