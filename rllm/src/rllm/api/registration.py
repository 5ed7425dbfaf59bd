"""Register algorithms from a notebook or script, and choose them by name like installed plugins.

Every registry that this process creates later contains them. If an installed plugin has the same name, write
``in-process/NAME``. If you run a cell or module again, it replaces its earlier registration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from enum import Enum
from inspect import getdoc
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from rllm.api.classic import NORM, AsClassic, ClassicEstimator, FromClassic, reads, require_classic
from rllm.planning import shared_options
from rllm_core.contracts.estimator import EstimatorPlugin, Level, Scope
from rllm_core.contracts.grouping import GroupingPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.plugin import Plugin
from rllm_core.contracts.rejection import RejectionPlugin
from rllm_core.contracts.sampler import SamplerPlugin
from rllm_core.errors import PluginError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry, register_in_process
from rllm_core.schema.algorithm_sections import AlgorithmSection

ThingT = TypeVar("ThingT", bound=Callable[..., Any])

NONE: frozenset[str] = frozenset()


def plain_name(name: str) -> str:
    """Return a name as text. A member of an enumeration gives its value."""
    return str(name.value) if isinstance(name, Enum) else name


def offering(record_class: type[Plugin[Any]], name: str, summary: str, **fields: Any) -> Callable[[ThingT], ThingT]:
    """Return a decorator that registers the decorated object as a plugin, whose spec has these fields."""

    def record(thing: Any) -> Plugin[Any]:
        given = {field: freeze_set(value) for field, value in fields.items()}
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


def freeze_set(value: Any) -> Any:
    """Return a set as a frozenset."""
    # Keep a value that is not a set unchanged, so that the check of the plugin spec reports it.
    return frozenset(value) if isinstance(value, Set) else value


def register_rllm_adv_estimator(
    name: str,
    *,
    scope: Scope = "group",
    default_loss: str | None = None,
    needs: Set[str] = NONE,
    config_keys: Set[str] = NONE,
    summary: str = "",
) -> Callable[[ThingT], ThingT]:
    """Decorator for an estimator in rLLM's classic signature, ``f(rewards, algorithm_config, **kwargs)``.

    See `rllm.api.classic.ClassicEstimator` for its arguments and its result.

    Args:
        name: the value for ``rllm.algorithm.adv_estimator``.
        scope: the rollouts whose rewards one advantage depends on.
        default_loss: the loss used when ``rllm.algorithm.loss_fn`` is null.
        needs: inputs that must exist before it runs, such as ``greedy_rewards`` (then in `Trajectory.info`).
            ``step_rewards`` means that it reads the rewards of single steps.
        config_keys: config keys that it reads from `algorithm_config`, such as ``rllm.algorithm.kl_beta``. Setting a
            key that no part of the run reads is an error. A function with the argument ``norm_adv_by_std_in_grpo``
            need not declare it.
        summary: one line. If empty, the first line of the function's docstring.

    Raises:
        PluginError: the name or another argument is invalid, the function does not accept this call, or another
            function is registered under the name.
    """

    name = plain_name(name)

    def record(function: Any) -> EstimatorPlugin[Any]:
        require_classic(name, function)
        read = {f"rllm.algorithm.{NORM}"} if reads(function, NORM) else NONE
        return EstimatorPlugin(
            name=name,
            summary=summary or read_summary(function),
            load=lambda: FromClassic(name, function),
            scope=scope,
            needs=freeze_set(needs),
            default_loss=default_loss,
            config_keys=freeze_set(config_keys | read if isinstance(config_keys, Set) else config_keys),
        )

    return registering("register_rllm_adv_estimator", name, record)


def get_rllm_adv_estimator(name: str) -> ClassicEstimator:
    """Return an estimator in rLLM's classic signature. An estimator with another signature is converted.

    `name` is an estimator's name, or a member of `rLLMAdvantageEstimator` or its name: ``grpo``, ``GRPO``.

    An estimator that was registered with the classic signature is returned unchanged. Any other becomes a function
    ``f(rewards, algorithm_config=None, traj_groups=None, **options)``.

    Raises:
        PluginError: no estimator has this name or several have it, or it gives advantages per step or per token.
    """
    name = plain_name(name)
    if not isinstance(name, str):
        raise PluginError(
            "bad-plugin-spec", f"{name!r:.80} is not the name of an estimator.", "Give a text such as 'grpo'."
        )
    name = name.lower()
    registry = Registry.load()
    registered = registry.get("estimator", name)
    estimator = registered.load()
    if isinstance(estimator, FromClassic):
        return estimator.function

    def params_of(algorithm_config: AlgorithmSection | None, options: Mapping[str, Any]) -> BaseModel:
        shared: dict[str, Any] = {}
        if algorithm_config is not None:
            shared = shared_options(algorithm_config, "estimator")
        where = f"get_rllm_adv_estimator({name!r})"
        params: BaseModel = choose(registry, "estimator", {"name": name, **options}, where, shared).params
        return params

    return cast(ClassicEstimator, AsClassic(registered.plugin, estimator, params_of))


def register_rllm_estimator(
    name: str,
    *,
    params: type[BaseModel] = NoParams,
    level: Level = "trajectory",
    scope: Scope = "group",
    default_loss: str | None = None,
    needs: Set[str] = NONE,
    config_keys: Set[str] = NONE,
    summary: str = "",
) -> Callable[[ThingT], ThingT]:
    """Decorator for an estimator ``f(inputs: AdvantageInput, params) -> Advantages`` with its own options.

    Arguments are the fields of `EstimatorPlugin`. See `register_rllm_adv_estimator` for the errors.
    """

    fields = {"level": level, "scope": scope, "needs": needs, "default_loss": default_loss, "config_keys": config_keys}
    return offering(EstimatorPlugin, name, summary, load_params=lambda: params, **fields)


def register_rllm_loss(
    name: str,
    *,
    params: type[BaseModel] = NoParams,
    needs: Set[str] = NONE,
    corrects_rollouts: bool = False,
    has_ratio: bool = True,
    config_keys: Set[str] = NONE,
    summary: str = "",
) -> Callable[[ThingT], ThingT]:
    """Decorator for a policy loss ``f(inputs: LossInput, params) -> Tensor``, one number per sampled token.

    Arguments are the fields of `LossPlugin`. See `register_rllm_adv_estimator` for the errors.
    """

    fields = {
        "needs": needs,
        "corrects_rollouts": corrects_rollouts,
        "has_ratio": has_ratio,
        "config_keys": config_keys,
    }
    return offering(LossPlugin, name, summary, load_params=lambda: params, **fields)


def register_rllm_grouping(
    name: str, *, params: type[BaseModel] = NoParams, config_keys: Set[str] = NONE, summary: str = ""
) -> Callable[[ThingT], ThingT]:
    """Decorator for a grouping ``f(episodes, params) -> list[TrajectoryGroup]``.

    Arguments are the fields of `GroupingPlugin`. See `register_rllm_adv_estimator` for the errors.
    """

    return offering(GroupingPlugin, name, summary, load_params=lambda: params, config_keys=config_keys)


def register_rllm_rejection(
    name: str, *, params: type[BaseModel] = NoParams, config_keys: Set[str] = NONE, summary: str = ""
) -> Callable[[ThingT], ThingT]:
    """Decorator for a rejection mode, which is a class. Each run creates one object, with its options.

    Arguments are the fields of `RejectionPlugin`. See `RejectionMode` for the methods and
    `register_rllm_adv_estimator` for the errors.
    """

    return offering(RejectionPlugin, name, summary, load_params=lambda: params, config_keys=config_keys)


def register_rllm_sampler(
    name: str, *, params: type[BaseModel] = NoParams, config_keys: Set[str] = NONE, summary: str = ""
) -> Callable[[ThingT], ThingT]:
    """Decorator for a sampler, which is a class derived from `Sampler`. Each run creates one object, with its options
    and the setup.

    Arguments are the fields of `SamplerPlugin`. See `register_rllm_adv_estimator` for the errors.
    """

    return offering(SamplerPlugin, name, summary, load_params=lambda: params, config_keys=config_keys)


class EstimatorNames(Mapping[str, ClassicEstimator]):
    """Live view of the installed and registered estimators. `register_rllm_adv_estimator` adds to it.

    The names are values for ``rllm.algorithm.adv_estimator``. A name that two packages offer is qualified. Estimators
    with advantages per step or per token are missing, because the classic signature has one per trajectory.
    """

    def __getitem__(self, name: str) -> ClassicEstimator:
        """Return the estimator, as `get_rllm_adv_estimator`, but raise KeyError instead of PluginError."""
        try:
            return get_rllm_adv_estimator(name)
        except PluginError as error:
            raise KeyError(f"{error.message} {error.hint}") from error

    def __iter__(self) -> Iterator[str]:
        found = [entry for entry in Registry.load().all("estimator") if entry.plugin.level == "trajectory"]
        names = [entry.name for entry in found]
        return iter([entry.name if names.count(entry.name) == 1 else entry.qualified_name for entry in found])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return f"<estimators {', '.join(self)}>"


RLLM_ADV_ESTIMATOR_REGISTRY = EstimatorNames()
