"""What every kind of plugin record has in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

API_VERSION = 1
"""Version of the records in this package. A plugin module may state ``requires_api = 1``; another major
version is refused by name before any of its hooks is called."""

GIVES_FACT = {"gives_fact": True}
"""Metadata of a record's field: its function gives a fact, and ``rllm plugins info`` calls it to show that."""


class Params(BaseModel):
    """Base of a plugin's own options: unknown options are errors, and options never change after start."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class NoParams(Params):
    """For plugins without options."""


ParamsT = TypeVar("ParamsT", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Plugin(Generic[ParamsT]):
    """A typed record that offers one thing under one name.

    Creating a record must be cheap: whatever imports torch, numpy or a client library happens in `load`.
    """

    kind: ClassVar[str]

    name: str
    """What users write in config."""
    summary: str
    """One line, shown by ``rllm plugins list``."""
    params: type[ParamsT] = NoParams  # type: ignore[assignment]
    """Pydantic model of the plugin's options; its defaults are the plugin's defaults."""
    load: Callable[[], Any]
    """Returns the implementation. Heavy imports belong in here."""
    config_keys: frozenset[str] = frozenset()
    """Config keys of the core that this plugin reads, for example ``rllm.algorithm.kl_beta``. ``section.*`` means all
    keys of a section. If a user sets such a key and no chosen plugin reads it, the run does not start."""
    fixed_options: Mapping[str, object] = field(default_factory=dict)
    """Options of others of its kind that it lacks, by name, with the value that it acts by:
    ``{"norm_adv_by_std_in_grpo": False}`` of an estimator that never divides by it. Where a user sets the core's key
    of that name to this value, that is a warning; another value is an error."""
    check: Callable[[Any], None] | None = None
    """Takes the options and raises ConfigError for what is seen to be wrong without loading anything heavy, such as a
    file that is not there. Called by ``--dry-run``, ``rllm config validate`` and before a run starts."""
    family_option: str | None = None
    """The option that a word behind the name sets: ``reasoning_gym:chain_sum`` chooses ``reasoning_gym`` with this
    option at ``chain_sum``. None: a name with a colon is refused."""
    deprecated: str | None = None
    """Why not to choose it any more, and what to choose instead."""
