"""What all sections of the configuration are made of, and marks that say who acts on a key.

A key without a mark is read by the core itself. A mark makes the others checkable: a value that nobody would act on
stops the run (see ``rllm.planning.unused_keys``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
class ByPlugins:
    """The key acts through a chosen plugin that lists it in `config_keys` or, for backends, in `shared_keys`."""

    kind: str | None = None
    """The one kind of plugins that can act on it; None: any."""


@dataclass(frozen=True)
class TakenOver:
    """Chosen plugins of certain kinds that have an option of the key's name take its value over, unless it is null or
    their own mapping sets the option."""

    kinds: tuple[str, ...]


@dataclass(frozen=True)
class SharedOption(ByPlugins, TakenOver):
    """The key acts through plugins alone, also as an option of theirs."""


@dataclass(frozen=True)
class Refused:
    """The key, or one value of it, cannot be honoured by anything there is."""

    reason: str
    """Why, and what to do instead: one or two sentences."""
    value: object = None
    """The one value that is refused; None means every value but the default."""


@dataclass(frozen=True)
class Redundant:
    """One value of the key asks for what is always done: it is accepted with a warning, any other is refused."""

    value: object
    reason: str


@dataclass(frozen=True)
class IdleWithout:
    """The key has no effect while another one of its section is false, 0 or null."""

    key: str


@dataclass(frozen=True)
class IdleWhen:
    """The key has no effect where other values of its section pass a test."""

    test: Callable[[Any], bool]
    """Takes the section."""
    because: str
    """Why, without a full stop; ``{name}`` stands for a value of the section."""
    remedy: str


@dataclass(frozen=True)
class ChangesNothing:
    """A value that is acted on and leaves all as it is, where its section passes a test; users of rLLM may have set it
    for what is always done here."""

    test: Callable[[Any], bool]
    because: str


@dataclass(frozen=True)
class WhileOff:
    """What counts in place of the key's value while the switch of its section is off."""

    value: object


@dataclass(frozen=True)
class WhileOffAs:
    """Another key of its section counts in place of it while the key's switch is off."""

    key: str


@dataclass(frozen=True)
class Names:
    """The value is, or holds, names of plugins of this kind."""

    kind: str


@dataclass(frozen=True)
class HoldsChoice:
    """Each mapping in the value may itself hold a plugin choice, under this key."""

    key: str


@dataclass(frozen=True)
class AsPackaged:
    """A mapping, or a model that allows any key, which another system reads: the backend's YAML, with all that it
    composes, says which keys there are and of what type their values are."""

    free: frozenset[str] = frozenset()
    """Mappings in it, by dotted key from the top, that take further keys."""
    optional: frozenset[str] = frozenset()
    """Keys that the YAML leaves out."""


@dataclass(frozen=True)
class OptionsOf:
    """The value holds the options of the plugin that another option of the same record names."""

    key: str


@dataclass(frozen=True)
class RolloutSeconds:
    """An option of a workflow: seconds after which an attempt ends."""


@dataclass(frozen=True)
class ShapesStepRewards:
    """An option of a workflow that changes the rewards of steps and not those of trajectories; 0 changes none."""


@dataclass(frozen=True)
class ReadsStepRewards:
    """An option of an estimator that needs ``step_rewards``: where it is false, it reads none of them."""


@dataclass(frozen=True)
class TasksPerBatch:
    """An option of a rejection mode: how many tasks it fills a batch with. It is given no more than there are."""


def marked(model: type[BaseModel], mark: type[Any]) -> Iterator[str]:
    """Names of the keys or options with a mark."""
    for name, field in model.model_fields.items():
        if any(isinstance(each, mark) for each in field.metadata):
            yield name


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values never change after start."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def section(model: type[Section]) -> Any:
    """The field of a section: its values are defaults, its description is the docstring of its model."""
    return Field(default_factory=model, description=getdoc(model))
