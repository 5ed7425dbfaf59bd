"""The base class of all sections of the configuration, and the marks of keys.

A key needs three facts: which part of rllm reads it, when it has no effect, and the message for that. A key without a
mark is read by the core itself. A value that no part of rllm would read stops the run (see
``rllm.planning.unused_keys``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from inspect import getdoc
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Choice = str | dict[str, Any]
"""A plugin by name: ``rloo``, ``rllm-core/rloo``, or ``{name: grpo, norm_adv_by_std_in_grpo: false}``."""

ROLE_LOSS = "loss_fn"
"""Key of a mapping in ``estimator_map`` that chooses the role's loss."""

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class ActsIn:
    """Where the key, or every key of the section, acts. One without this mark acts in a run of ``rllm train``, also in
    one that only validates."""

    where: Literal["training", "playing"]
    """``training``: not where tasks are only played. ``playing``: wherever they are, also in ``rllm eval``."""


TRAINING, PLAYING = ActsIn("training"), ActsIn("playing")


@dataclass(frozen=True)
class ReadBy:
    """The key is read by chosen plugins that list it in `config_keys` or, for backends, in `shared_keys`."""

    kind: str | None = None
    """The one kind of plugins that can read it; None: any."""
    options_of: tuple[str, ...] = ()
    """Kinds of plugins that receive the value as their option of the key's name, unless the value is null or the
    plugin's own mapping sets the option."""
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
        switch: the other key, such as ``tis_mode``, or the word that turns it on, such as ``enable=true``.
        instead: as in `NoEffect`.
    """
    name = switch.partition("=")[0]
    return NoEffect(
        lambda section: not getattr(section, name),
        f" while {{section}}.{name} is {{{name}}}",
        f"Set {{section}}.{switch} as well, or leave it out.",
        instead,
    )


@dataclass(frozen=True)
class Rejected:
    """The key, or one value of it, is rejected because no part of rllm can do what it requests."""

    reason: str
    """Why, and what to do instead: one or two sentences."""
    value: object = None
    """The one value that is rejected; None means every value but the default."""
    accepted: object = None
    """A value that requests what is always done: it is accepted with a warning. None: no such value."""


@dataclass(frozen=True)
class Names:
    """The value is, or contains, names of plugins of this kind."""

    kind: str
    options: str | None = None
    """The option of the same plugin that contains the named plugin's options."""
    inner_choice: str | None = None
    """The key under which each mapping in the value may contain a second plugin choice."""


@dataclass(frozen=True)
class AsPackaged:
    """A mapping, or a model that allows any key, which another system reads: the backend's YAML, with all that it
    composes, says which keys there are and of what type their values are."""

    free: frozenset[str] = frozenset()
    """Mappings in it, by dotted key from the top, that take further keys."""
    optional: frozenset[str] = frozenset()
    """Keys that the YAML leaves out."""


class Means(Enum):
    """The meaning of a plugin's option for the run."""

    ROLLOUT_SECONDS = auto()
    """Of a workflow: seconds after which a rollout ends."""
    SHAPES_STEP_REWARDS = auto()
    """Of a workflow: it changes the rewards of steps, not the rewards of trajectories; 0 changes none."""
    READS_STEP_REWARDS = auto()
    """Of an estimator that needs ``step_rewards``: if it is false, the estimator reads none of them."""
    TASKS_PER_BATCH = auto()
    """Of a rejection mode: the number of tasks in a full batch, never more than the run has."""


def marked(model: type[BaseModel], meaning: Means) -> Iterator[str]:
    """Yield the names of the options with a meaning."""
    for name, field in model.model_fields.items():
        if meaning in field.metadata:
            yield name


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values never change after start."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def section(model: type[Section]) -> Any:
    """The field of a section: its values are defaults, its description is the docstring of its model."""
    return Field(default_factory=model, description=getdoc(model))
