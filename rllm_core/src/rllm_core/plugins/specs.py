"""The kinds of plugins. Each has a hook, which takes no arguments and returns plugin specs. Every spec is checked.

A plugin is a module with some of these hooks, marked ``@hookimpl``, and one line of packaging::

    [project.entry-points."rllm.plugins"]
    rllm-example = "rllm_example.plugin"        # left of the "=": the name of the package

The docstring of each spec class contains a complete module of this kind. The test suite runs these modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_args

import pluggy

from rllm_core import contracts
from rllm_core.contracts.estimator import Level, Scope
from rllm_core.contracts.plugin import Plugin
from rllm_core.contracts.reward import RewardScope
from rllm_core.plugins.discovery import UnusablePluginError

PROJECT = "rllm"
"""The name that pluggy uses to match markers and manager."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Kind(NamedTuple):
    """The hook and the spec class of one kind of plugin."""

    hook: str
    """The name of the function that a plugin implements."""
    record: type[Plugin[Any]]
    """The class of the objects that this function returns."""


_HOOKS: Mapping[str, type[Plugin[Any]]] = {
    "rllm_estimators": contracts.EstimatorPlugin,  # rllm.algorithm.adv_estimator
    "rllm_losses": contracts.LossPlugin,  # rllm.algorithm.loss_fn
    "rllm_groupings": contracts.GroupingPlugin,  # rllm.transform.grouping
    "rllm_rejections": contracts.RejectionPlugin,  # rllm.rejection_sample.mode
    "rllm_samplers": contracts.SamplerPlugin,  # rllm.sampler
    "rllm_objectives": contracts.ObjectivePlugin,  # rllm.objective
    "rllm_teachers": contracts.TeacherPlugin,  # rllm.teacher
    "rllm_sandboxes": contracts.SandboxPlugin,  # rllm.sandbox
    "rllm_stages": contracts.StagePlugin,  # rllm.pipeline
    "rllm_backends": contracts.BackendPlugin,  # rllm.backend
    "rllm_engines": contracts.EnginePlugin,  # rllm.rollout.engine
    "rllm_workflows": contracts.WorkflowPlugin,  # rllm.workflow.name
    "rllm_agents": contracts.AgentPlugin,  # rllm.agent.name
    "rllm_environments": contracts.EnvironmentPlugin,  # rllm.env.name
    "rllm_rewards": contracts.RewardPlugin,  # rllm.reward
    "rllm_renderers": contracts.RendererPlugin,  # rllm.renderer
    "rllm_datasets": contracts.DatasetPlugin,  # data.train_dataset and data.val_dataset
    "rllm_trackers": contracts.TrackerPlugin,  # rllm.trainer.logger
    "rllm_observers": contracts.ObserverPlugin,  # rllm.trainer.observers
}
"""The hook of each kind, and the class of its plugin specs. The comments are the keys that choose one."""

KINDS: Mapping[str, Kind] = {record.kind: Kind(hook, record) for hook, record in _HOOKS.items()}
"""All kinds by name. They are listed in the order of their hooks."""


def _offer_plugins() -> Iterable[Plugin[Any]]:
    """Return plugin specs of one kind. This is the signature of every hook."""
    return ()


HOOKSPECS = type("Hookspecs", (), dict.fromkeys(_HOOKS, hookspec(_offer_plugins)))
"""The hooks for pluggy, which compares the arguments of a plugin's function with theirs."""

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
    if not callable(record.load_params) or isinstance(record.load_params, type):
        raise UnusablePluginError(
            f"{subject}: load_params must be a function without arguments, such as `lambda: Options`, not "
            f"{_describe(record.load_params)}"
        )
    if not callable(record.load):
        raise UnusablePluginError(f"{subject}: load must be a function without arguments, not {_describe(record.load)}")
    if kind == "environment" and record.name == "custom":
        raise UnusablePluginError(f"{subject}: `custom` means no environment; choose a different name")
    for field in _NAME_SETS:
        names: object = getattr(record, field, frozenset())
        if not isinstance(names, frozenset) or not all(isinstance(name, str) for name in names):
            raise UnusablePluginError(f"{subject}: {field} must be a frozenset of names, not {names!r}")
    one_of = {"scope": get_args(RewardScope)} if kind == "reward" else _ONE_OF
    for field, values in one_of.items():
        value = getattr(record, field, values[0])
        if value not in values and not (kind == "reward" and callable(value)):
            raise UnusablePluginError(f"{subject}: {field} must be one of {', '.join(values)}, not {value!r}")
    return record


def _check_line(subject: str, field: str, text: object) -> None:
    if not isinstance(text, str) or not text.strip() or len(text.splitlines()) != 1:
        raise UnusablePluginError(f"{subject}: {field} must be one line of text, not {text!r}")


def _describe(value: object) -> str:
    if isinstance(value, Plugin):
        return f"the {type(value).__name__} {value.name!r}"
    return f"the class {value.__name__}" if isinstance(value, type) else f"{value!r} ({type(value).__name__})"
