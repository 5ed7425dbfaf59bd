"""Registering workflows, environments and rewards from a notebook or script; see `rllm.api.registration`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from inspect import getattr_static, isclass, iscoroutinefunction, signature
from typing import Any, cast

from pydantic import BaseModel

from rllm.api.python_plugins import workflow_plugin
from rllm.api.registration import NONE, ThingT, freeze_set, read_summary, registering
from rllm_core.contracts.environment import Environment, EnvironmentPlugin
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.reward import Reward, RewardPlugin, RewardScope, Rollout
from rllm_core.contracts.workflow import OpenedRun, WorkflowPlugin
from rllm_core.errors import ConfigError, PluginError, describe_function

SECONDS = 60.0


def register_rllm_workflow(
    name: str,
    *,
    params: type[BaseModel] | None = None,
    stop_texts: bool = False,
    open: Callable[[OpenedRun, Any], AbstractAsyncContextManager[Any]] | None = None,
    summary: str = "",
) -> Callable[[ThingT], ThingT]:
    """Decorator for a subclass of `Workflow`, chosen by ``rllm.workflow.name``.

    Args:
        name: the name for the configuration.
        params: model of its options. None: ``workflow_args`` are the arguments of the class's constructor.
        stop_texts: as `WorkflowPlugin.stop_texts`.
        open: as `WorkflowPlugin.open`.
        summary: one line. If empty, the first line of the class's docstring.

    Raises:
        PluginError: the name or the class is invalid, or a different class is registered under the name.
    """

    def record(thing: Any) -> WorkflowPlugin[Any]:
        try:
            of_class = workflow_plugin(thing, {})
        except ConfigError as error:
            raise PluginError(error.code, f"register_rllm_workflow({name!r}): {error.message}", error.hint) from error
        named = replace(of_class, name=name, summary=summary or read_summary(thing), stop_texts=stop_texts, open=open)
        return named if params is None else replace(named, load_params=lambda: params, load=lambda: thing)

    return registering("register_rllm_workflow", name, record)


def register_rllm_environment(
    name: str,
    *,
    params: type[BaseModel] = NoParams,
    blocking: bool = True,
    defaults: Mapping[str, Any] | None = None,
    needs_keys: Mapping[str, str] | None = None,
    best_possible: Mapping[str, float] | None = None,
    config_keys: Set[str] = NONE,
    summary: str = "",
) -> Callable[[ThingT], ThingT]:
    """Decorator for a subclass of `Environment`, chosen by ``rllm.env.name``. It is created with its options.

    Arguments are the fields of `EnvironmentPlugin`. See `register_rllm_workflow` for the errors.
    """

    def record(thing: Any) -> EnvironmentPlugin[Any]:
        if not (isclass(thing) and issubclass(thing, Environment)):
            raise PluginError(
                "bad-plugin-spec",
                f"register_rllm_environment({name!r}) decorates {thing!r:.80}.",
                "Write a subclass of rllm_core.contracts.Environment with tasks, reset and step.",
            )
        _check_methods(thing)
        return EnvironmentPlugin(
            name=name,
            summary=summary or read_summary(thing),
            load=lambda: thing,
            load_params=lambda: params,
            blocking=blocking,
            defaults=dict(defaults or {}),
            needs_keys=dict(needs_keys or {}),
            best_possible=dict(best_possible or {}),
            config_keys=freeze_set(config_keys),
        )

    return registering("register_rllm_environment", name, record)


METHODS = {
    "__init__": ("self", "params"),
    "tasks": ("cls", "split", "params"),
    "reset": ("self", "task"),
    "step": ("self", "action"),
}


def _check_methods(environment: type[Environment]) -> None:
    """Check that rllm can call the methods of an environment.

    Raises:
        PluginError: a method is missing, or has other parameters.
    """
    for name, parameters in METHODS.items():
        remedy = f"Write {'@classmethod ' * (name == 'tasks')}def {name}({', '.join(parameters)})."
        if name in environment.__abstractmethods__:
            raise PluginError(
                "bad-plugin-spec", f"Environment {environment.__qualname__} has no method {name}.", remedy
            )
        method = getattr(environment, name)
        has_self = name in ("reset", "step") and not isinstance(getattr_static(environment, name), staticmethod)
        try:
            signature(environment if name == "__init__" else method).bind(*parameters[not has_self :])
        except (TypeError, ValueError) as error:
            where = describe_function(method)
            raise PluginError("bad-plugin-spec", f"{where} has other parameters: {error}.", remedy) from error


def register_rllm_reward(
    name: str,
    *,
    params: type[BaseModel] | None = None,
    needs: Set[str] = NONE,
    timeout: float = SECONDS,
    blocking: bool = True,
    summary: str = "",
    scope: RewardScope = "rollout",
) -> Callable[[ThingT], ThingT]:
    """Decorator for a reward, chosen by ``rllm.reward``: a function, a coroutine function, or a class.

    A function is called as ``f(rollout)``, or with ``params=`` as ``f(rollout, params)``. A class is created once per
    run with its options, and called as ``reward(rollout)``. The result is the result of a `Reward`. With
    ``scope="group"`` the argument is a list of all rollouts of a task, as for a `GroupReward`.

    Arguments are the fields of `RewardPlugin`. See `register_rllm_workflow` for the errors.
    """

    def record(thing: Any) -> RewardPlugin[Any]:
        make = _reward_maker(name, thing, with_params=params is not None)
        return RewardPlugin(
            name=name,
            summary=summary or read_summary(thing),
            load_params=lambda: NoParams if params is None else params,
            load=lambda: make,
            needs=freeze_set(needs),
            timeout=timeout,
            blocking=blocking,
            scope=scope,
        )

    return registering("register_rllm_reward", name, record)


def _reward_maker(name: str, thing: Any, with_params: bool) -> Callable[[Any], Reward]:
    if isclass(thing):
        return cast("Callable[[Any], Reward]", thing)
    arguments = ("rollout", "params") if with_params else ("rollout",)
    try:
        signature(thing).bind(*arguments)
    except (TypeError, ValueError) as error:
        raise PluginError(
            "bad-reward-signature",
            f"register_rllm_reward({name!r}) decorates {describe_function(thing)}, which cannot be called with "
            f"({', '.join(arguments)}): {error}.",
            "Write `def f(rollout)`, or with `params=` `def f(rollout, params)`.",
        ) from error
    return partial(_bind_options, thing) if with_params else lambda params: thing


def _bind_options(function: Callable[..., Any], params: Any) -> Reward:
    """Bind a function to its options. A coroutine function stays one, because other functions run in a thread."""
    if iscoroutinefunction(function):

        async def call_async(rollout: Rollout) -> Any:
            return await function(rollout, params)

        return call_async

    def call(rollout: Rollout) -> Awaitable[Any] | Any:
        return function(rollout, params)

    return call
