"""Turn Python objects given to a trainer (a workflow class, grouping hook or backend class) into plugins."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from inspect import getdoc, iscoroutinefunction, unwrap
from typing import Any

from pydantic import ConfigDict

from rllm.config.layers import require_plain
from rllm.config.paths import leaves
from rllm.config.values import MISSING, escape
from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities
from rllm_core.contracts.grouping import GroupingPlugin
from rllm_core.contracts.params import NoParams, Params
from rllm_core.contracts.workflow import Workflow, WorkflowContext, WorkflowPlugin
from rllm_core.data.types import Episode, TrajectoryGroup
from rllm_core.errors import ConfigError
from rllm_core.rollout.options import AgentWorkflowParams
from rllm_core.rollout.workflows import EnvironmentWorkflow

GroupingHook = Callable[..., list[TrajectoryGroup]]
"""``hook(episodes, transform_config, compact_filtering_config=None)``."""
HOOK_NAME = "traj_grouping_hook"
CHOSEN_BY = "name"
"""The key of a choice that names the plugin. So no option of a plugin can have this name."""


class rLLMAdvantageEstimator(str, Enum):  # noqa: N801  (the name users of rLLM know)
    """The core's estimators, for those who like names that an editor completes."""

    GRPO = "grpo"
    REINFORCE = "reinforce"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    RLOO = "rloo"


class AnyParams(Params):
    """Options of a class that checks them itself, in its constructor."""

    model_config = ConfigDict(extra="allow", frozen=True)


class AnyWorkflowParams(AgentWorkflowParams):
    """Options of a class made from a workflow of the core, and whatever else its constructor takes."""

    model_config = ConfigDict(extra="allow", frozen=True)


class GroupingByHook:
    """A user's grouping hook, with the config sections it is given. `config` is set once there is a plan."""

    def __init__(self, hook: GroupingHook) -> None:
        if not callable(hook) or iscoroutinefunction(hook):
            what = f"{hook!r:.80}" if not callable(hook) else f"{hook!r:.80}, a coroutine function"
            raise ConfigError(
                "bad-plugin-spec",
                f"traj_grouping_hook is {what}.",
                "Give a plain function hook(episodes, transform_config, compact_filtering_config=None) that returns a "
                "list of TrajectoryGroup.",
            )
        self._hook = hook
        self.config: Any = None

    def __call__(self, episodes: Sequence[Episode], params: Any) -> list[TrajectoryGroup]:
        return self._hook(list(episodes), self.config.rllm.transform, self.config.rllm.compact_filtering)

    def as_plugin(self) -> GroupingPlugin[Any]:
        return GroupingPlugin(name=HOOK_NAME, summary="A function of this process.", load=lambda: self)


def workflow_plugin(workflow_class: type[Workflow], arguments: Mapping[str, Any]) -> WorkflowPlugin[Any]:
    """A workflow class with constructor arguments, which may be any objects."""
    if not (isinstance(workflow_class, type) and issubclass(workflow_class, Workflow)):
        raise ConfigError(
            "bad-plugin-spec",
            f"workflow_class is {workflow_class!r}.",
            "Give a subclass of rllm_core.contracts.workflow.Workflow, or choose one by name with rllm.workflow.name.",
        )
    if missing := sorted(workflow_class.__abstractmethods__):
        raise ConfigError(
            "bad-plugin-spec", f"workflow_class is {workflow_class!r}, which has no {', '.join(missing)}.", "Define it."
        )
    if not iscoroutinefunction(unwrap(workflow_class.run)):
        raise ConfigError(
            "bad-plugin-spec",
            f"workflow_class is {workflow_class!r}, and its `run` is not a coroutine function.",
            "Write `async def run(self, task, uid, **kwargs)`, and return an Episode.",
        )
    with_environment = issubclass(workflow_class, EnvironmentWorkflow)
    params = AnyWorkflowParams if with_environment else AnyParams
    defaults = params().model_dump()

    def make(context: WorkflowContext, **options: Any) -> Workflow:
        given = {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}
        return workflow_class(context, **{**given, **arguments})

    return WorkflowPlugin(
        name=make_plugin_name(workflow_class),
        summary=_summary(workflow_class),
        load_params=lambda: params,
        load=lambda: make,
        config_keys=workflow_class.config_keys,
        one_role=with_environment,
    )


def known_options(workflow_class: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the workflow arguments that the core reads, such as ``timeout`` and ``agent_cls``."""
    if not (isinstance(workflow_class, type) and issubclass(workflow_class, EnvironmentWorkflow)):
        return {}
    return {name: value for name, value in arguments.items() if name in AgentWorkflowParams.model_fields}


def plain_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the workflow arguments that a configuration can contain, so that the saved config shows them."""
    return {
        # Keep text unchanged: `${` is not a reference to a key here.
        name: escape(value)
        for name, value in arguments.items()
        if name != CHOSEN_BY and _is_plain({name: value})
    }


def _is_plain(value: dict[str, Any]) -> bool:
    try:
        require_plain(value, "workflow_args")
    except ConfigError:
        return False
    # A configuration takes that text for a value not given yet.
    return all(leaf != MISSING for _, leaf in leaves(value, into_lists=True))


def backend_plugin(backend: type[Backend] | BackendPlugin[Any]) -> BackendPlugin[Any]:
    """Return a backend class as a plugin. Its attributes `capabilities`, `params` and `config_keys` describe it.

    Without `config_keys`, the user may not set any key that only backends read.
    """
    if isinstance(backend, BackendPlugin):
        return backend
    if not (isinstance(backend, type) and issubclass(backend, Backend)):
        raise ConfigError(
            "bad-plugin-spec",
            f"The backend is {backend!r}.",
            "Give the name of one, a BackendPlugin or a subclass of Backend.",
        )
    anything = Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"}))
    return BackendPlugin(
        name=make_plugin_name(backend),
        summary=_summary(backend),
        load_params=lambda: getattr(backend, "params", NoParams),
        load=lambda: backend,
        capabilities=getattr(backend, "capabilities", anything),
        config_keys=getattr(backend, "config_keys", frozenset()),
    )


def estimator_choice(value: Any) -> str | dict[str, Any]:
    """Return an entry of ``traj_group_adv_estimator_map`` as a choice.

    The entry is a name, an enum member, a mapping, or a pair with a loss.
    """
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple | list) and len(value) == 2:
        estimator = estimator_choice(value[0])
        chosen = {"name": estimator} if isinstance(estimator, str) else estimator
        return {**chosen, "loss_fn": estimator_choice(value[1])}
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    raise ConfigError(
        "bad-choice",
        f"traj_group_adv_estimator_map has the value {value!r}.",
        "Give an estimator's name, a mapping {name: …, option: …}, or a pair (estimator, loss).",
    )


def make_plugin_name(thing: type[Any]) -> str:
    """Return the plugin name of a class, such as ``solver_judge_workflow`` for ``SolverJudgeWorkflow``."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", thing.__name__)
    return "_".join(word.lower() for word in words) or "unnamed"


def _summary(thing: type[Any]) -> str:
    return (getdoc(thing) or f"The class {thing.__name__}.").splitlines()[0].strip() or thing.__name__
