"""The base class of all config sections, and the marks of keys.

A key needs three facts: which part of rllm reads it, when it has no effect, and the message for that case. The core
itself reads keys without a mark. A value that no part of rllm reads stops the run (see ``rllm.planning.unused_keys``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from inspect import getdoc
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Choice = str | dict[str, Any]
"""A plugin choice: ``rloo``, ``rllm-core/rloo``, or ``{name: grpo, norm_adv_by_std_in_grpo: false}``."""

ROLE_LOSS = "loss_fn"
"""Key of a mapping in ``estimator_map`` that chooses the role's loss."""

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class UsedIn:
    """The kind of run in which the key, or every key of the section, has an effect. A key without this mark has an
    effect in ``rllm train``, including runs that only validate."""

    where: Literal["training", "rollout"]
    """``training``: only in runs that train. ``rollout``: in all runs that generate rollouts, including ``rllm eval``.
    """


TRAINING, ROLLOUT = UsedIn("training"), UsedIn("rollout")


@dataclass(frozen=True)
class ReadBy:
    """The key is read by chosen plugins that list it in `config_keys` or, for backends, in `shared_keys`."""

    kind: str | None = None
    """The only kind of plugins that can read the key. None if any kind can."""
    options_of: tuple[str, ...] = ()
    """Kinds of plugins that receive the value as their option with the key's name. They do not receive it if the value
    is null or if the plugin's own mapping sets the option."""
    core: bool = False
    """True if the core reads the key too."""


@dataclass(frozen=True)
class NoEffect:
    """The key, or every key of the section, has no effect if the section's values pass a test."""

    test: Callable[[Any], bool]
    """A function of the section."""
    because: str
    """The end of the sentence "KEY has no effect", without a full stop. ``{name}`` is replaced by a value of the
    section, and ``{section}`` by the section's dotted name."""
    remedy: str
    """A sentence with the same replacements."""
    instead: Callable[[Any], Any] | None = None
    """A function of the section that returns the value that applies instead of the key's."""


def no_effect_without(switch: str, instead: Callable[[Any], Any] | None = None) -> NoEffect:
    """Return the mark of a key that has no effect while another key of its section is false, 0 or null.

    Args:
        switch: the other key, such as ``tis_mode``, or the override that turns it on, such as ``enable=true``.
        instead: see `NoEffect`.
    """
    name = switch.partition("=")[0]
    return NoEffect(
        lambda section: not getattr(section, name),
        f" while {{section}}.{name} is {{{name}}}",
        f"Set {{section}}.{switch} as well, or remove this key.",
        instead,
    )


@dataclass(frozen=True)
class Rejected:
    """The key, or one value of it, is rejected because no part of rllm can do what it requests."""

    reason: str
    """The reason and the alternative, in one or two sentences."""
    value: object = None
    """The one value that is rejected. None if every value except the default is rejected."""
    accepted: object = None
    """A value that requests the behavior that always applies. It is accepted with a warning. None if no such value
    exists."""


@dataclass(frozen=True)
class Names:
    """The value is, or contains, names of plugins of this kind."""

    kind: str
    options: str | None = None
    """The option of the same plugin that contains the named plugin's options."""
    inner_choice: str | None = None
    """The key under which each mapping in the value may contain a second plugin choice."""


@dataclass(frozen=True)
class ExternalSection:
    """A mapping, or a model that allows any key, that another system reads. The backend's YAML, with everything that it
    composes, defines the valid keys and the types of their values."""

    free: frozenset[str] = frozenset()
    """Mappings in it that accept further keys, by dotted key from the top."""
    optional: frozenset[str] = frozenset()
    """Valid keys that the YAML does not contain."""


class OptionRole(Enum):
    """The role of a plugin's option in the run."""

    ROLLOUT_SECONDS = auto()
    """An option of a workflow: seconds after which a rollout ends."""
    SHAPES_STEP_REWARDS = auto()
    """An option of a workflow: it changes the rewards of steps, not the rewards of trajectories. If it is 0, it changes
    none."""
    READS_STEP_REWARDS = auto()
    """An option of an estimator that needs ``step_rewards``: if it is false, the estimator reads none of them."""
    TASKS_PER_BATCH = auto()
    """An option of a rejection mode: the number of tasks in a full batch. It is never more than the number of tasks in
    the run."""


def find_options(model: type[BaseModel], role: OptionRole) -> Iterator[str]:
    """Yield the names of the options with a role."""
    for name, field in model.model_fields.items():
        if role in field.metadata:
            yield name


class Section(BaseModel):
    """Base class of all sections. Unknown keys are errors. Values never change after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


def section(model: type[Section]) -> Any:
    """Return the field of a section. Its values are defaults. Its description is the docstring of its model."""
    return Field(default_factory=model, description=getdoc(model))
