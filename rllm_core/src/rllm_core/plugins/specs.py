"""The kinds of plugins. Each has a hook, which takes no arguments and returns plugin specs. Every spec is checked.

A plugin is a module with some of these hooks, marked ``@hookimpl``, and one line of packaging::

    [project.entry-points."rllm.plugins"]
    rllm-example = "rllm_example.plugin"        # left of the "=": the name of the package

The docstring of each spec class contains a complete module of this kind. The test suite runs these modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import pluggy

from rllm_core.contracts import (
    AgentPlugin,
    BackendPlugin,
    DatasetPlugin,
    EnginePlugin,
    EnvironmentPlugin,
    EstimatorPlugin,
    GroupingPlugin,
    LossPlugin,
    ObjectivePlugin,
    ObserverPlugin,
    Plugin,
    RejectionPlugin,
    RendererPlugin,
    RewardPlugin,
    SamplerPlugin,
    SandboxPlugin,
    StagePlugin,
    TeacherPlugin,
    TrackerPlugin,
    WorkflowPlugin,
)
from rllm_core.contracts.estimator import Level, Scope
from rllm_core.contracts.reward import RewardScope
from rllm_core.plugins.discovery import UnusablePluginError

PROJECT = "rllm"
"""The name that pluggy uses to match markers and manager."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def rllm_estimators() -> Iterable[EstimatorPlugin[Any]]:
    """Offer advantage estimators. Users choose one with ``rllm.algorithm.adv_estimator``."""
    return ()


@hookspec
def rllm_losses() -> Iterable[LossPlugin[Any]]:
    """Offer policy losses. Users choose one with ``rllm.algorithm.loss_fn``."""
    return ()


@hookspec
def rllm_groupings() -> Iterable[GroupingPlugin[Any]]:
    """Offer groupings. Users choose one with ``rllm.transform.grouping``."""
    return ()


@hookspec
def rllm_rejections() -> Iterable[RejectionPlugin[Any]]:
    """Offer rejection modes. Users choose one with ``rllm.rejection_sample.mode``."""
    return ()


@hookspec
def rllm_samplers() -> Iterable[SamplerPlugin[Any]]:
    """Offer samplers, which choose the tasks of the next rollout batch. Users choose it with ``rllm.sampler``."""
    return ()


@hookspec
def rllm_objectives() -> Iterable[ObjectivePlugin]:
    """Offer objectives: pipelines that learn, with default values. Users choose one with ``--objective``."""
    return ()


@hookspec
def rllm_teachers() -> Iterable[TeacherPlugin[Any]]:
    """Offer teachers, which score the tokens of rollouts for distillation. Users choose one with ``rllm.teacher``."""
    return ()


@hookspec
def rllm_sandboxes() -> Iterable[SandboxPlugin[Any]]:
    """Offer sandboxes, in which the commands of agents and of tests run. Users choose one with ``rllm.sandbox``."""
    return ()


@hookspec
def rllm_stages() -> Iterable[StagePlugin[Any]]:
    """Offer pipeline stages. Users place them with ``rllm.pipeline``."""
    return ()


@hookspec
def rllm_backends() -> Iterable[BackendPlugin[Any]]:
    """Offer backends, which sample, update and save the weights. Users choose one with ``rllm/backend=NAME``."""
    return ()


@hookspec
def rllm_engines() -> Iterable[EnginePlugin[Any]]:
    """Offer rollout engines, which sample for backends. Users choose one with ``rllm.rollout.engine``."""
    return ()


@hookspec
def rllm_workflows() -> Iterable[WorkflowPlugin[Any]]:
    """Offer workflows, which produce one rollout of a task. Users choose one with ``rllm.workflow.name``."""
    return ()


@hookspec
def rllm_agents() -> Iterable[AgentPlugin[Any]]:
    """Offer agents, which convert model responses to actions. Users choose one with ``rllm.agent.name``."""
    return ()


@hookspec
def rllm_environments() -> Iterable[EnvironmentPlugin[Any]]:
    """Offer environments, which provide tasks, observations and rewards. Users choose one with ``rllm.env.name``."""
    return ()


@hookspec
def rllm_rewards() -> Iterable[RewardPlugin[Any]]:
    """Offer rewards, which score rollouts. Users list them in ``rllm.reward``."""
    return ()


@hookspec
def rllm_renderers() -> Iterable[RendererPlugin[Any]]:
    """Offer renderers, which convert messages to tokens and back. Users choose one with ``rllm.renderer``."""
    return ()


@hookspec
def rllm_datasets() -> Iterable[DatasetPlugin[Any]]:
    """Offer datasets of tasks. Users choose them with ``data.train_dataset`` and ``data.val_dataset``."""
    return ()


@hookspec
def rllm_trackers() -> Iterable[TrackerPlugin[Any]]:
    """Offer trackers, which receive metrics. Users list them in ``rllm.trainer.logger``."""
    return ()


@hookspec
def rllm_observers() -> Iterable[ObserverPlugin[Any]]:
    """Offer observers, which receive events of the training loop. Users list them in ``rllm.trainer.observers``."""
    return ()


class Kind(NamedTuple):
    """The hook and the spec class of one kind of plugin."""

    hook: str
    """The name of the function that a plugin implements."""
    record: type[Plugin[Any]]
    """The class of the objects that this function returns."""


def _kinds() -> Iterator[tuple[str, Kind]]:
    """Yield all kinds. They are derived from the return types of the hooks."""
    for hook, spec in globals().items():
        if hook.startswith("rllm_"):
            (returned,) = get_args(get_type_hints(spec)["return"])
            record = get_origin(returned) or returned
            yield record.kind, Kind(hook, record)


KINDS: Mapping[str, Kind] = dict(_kinds())
"""All kinds by name. They are listed in the order of their hooks."""

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
