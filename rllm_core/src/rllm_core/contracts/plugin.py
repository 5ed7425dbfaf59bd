"""The common base of all plugin specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

API_VERSION = 1
"""Version of the interface in this package. A plugin module may set ``requires_api = 1``. If its major version differs,
rllm rejects the module before it calls any of its hooks, and reports the module's name."""

GIVES_FACT = {"gives_fact": True}
"""Metadata of a spec's field. It marks a function that ``rllm plugins info`` calls in order to show its result."""


class Params(BaseModel):
    """Base class for the options of a plugin. Unknown options are errors. Options never change after the start."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class NoParams(Params):
    """The options of plugins that have none."""


ParamsT = TypeVar("ParamsT", bound=BaseModel)


@dataclass(frozen=True, kw_only=True)
class Plugin(Generic[ParamsT]):
    """A typed spec that offers one implementation under one name.

    A spec must be cheap to create. Import torch, numpy and client libraries only inside `load`.
    """

    kind: ClassVar[str]

    name: str
    """The name that users write in the config."""
    summary: str
    """One-line description that ``rllm plugins list`` shows."""
    params: type[ParamsT] = NoParams  # type: ignore[assignment]
    """Pydantic model of the plugin's options. Its defaults are the plugin's defaults."""
    load: Callable[[], Any]
    """Returns the implementation. Heavy imports belong in here."""
    config_keys: frozenset[str] = frozenset()
    """Config keys of the core that this plugin reads, for example ``rllm.algorithm.kl_beta``. ``section.*`` means all
    keys of a section. If a user sets such a key and no chosen plugin reads it, the run does not start."""
    fixed_options: Mapping[str, object] = field(default_factory=dict)
    """Options that other plugins of this kind have and this plugin lacks. Each maps to the value that describes this
    plugin's behavior. For example, an estimator that never divides by the standard deviation has
    ``{"norm_adv_by_std_in_grpo": False}``. If a user sets the core key of that name to this value, rllm warns. A
    different value is an error."""
    check: Callable[[Any], None] | None = None
    """Takes the options and raises ConfigError for errors that need no heavy imports to detect, such as a missing file.
    Called by ``--dry-run``, by ``rllm config validate`` and before a run starts."""
    sources: Callable[[Any], Mapping[str, str]] | None = None
    """Takes the options and returns a mapping of names to text: other inputs of a run. Examples are the file of an
    agent or a reward with its content, and a library with its version. Checkpoints contain this mapping. A resumed run
    whose mapping differs stops, unless ``rllm.trainer.on_changed_source`` is ``warn``."""
    family_option: str | None = None
    """The option that a suffix of the name sets. For example, ``reasoning_gym:chain_sum`` chooses ``reasoning_gym`` and
    sets this option to ``chain_sum``. If None, a name with a colon is rejected."""
    deprecated: str | None = None
    """The reason why the plugin is deprecated, and the alternative. None if it is not deprecated."""
