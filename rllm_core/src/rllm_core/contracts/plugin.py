"""The common base of all plugin specs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from rllm_core.errors import PluginError

if TYPE_CHECKING:
    from pydantic import BaseModel

API_VERSION = 1
"""Version of the interface in this package. A plugin module may set ``requires_api = 1``. If its major version differs,
rllm rejects the module before it calls any of its hooks, and reports the module's name."""

GIVES_FACT = {"gives_fact": True}
"""Metadata of a spec's field. It marks a function that ``rllm plugins info`` calls in order to show its result."""
ParamsT = TypeVar("ParamsT", bound="BaseModel")


def _load_no_params() -> type[Any]:
    from rllm_core.contracts.params import NoParams

    return NoParams


@dataclass(frozen=True, kw_only=True)
class Plugin(Generic[ParamsT]):
    """A typed spec that offers one implementation under one name.

    A spec must be cheap to create, because listing plugins creates all of them. Import pydantic only inside
    `load_params`, and torch, numpy and client libraries only inside `load`.
    """

    kind: ClassVar[str]
    _reserved: ClassVar[frozenset[str]] = frozenset()
    """Names that options of this kind cannot have, because the core uses them."""

    name: str
    """The name that users write in the config."""
    summary: str
    """One-line description that ``rllm plugins list`` shows."""
    load: Callable[[], Any]
    """Returns the implementation. Heavy imports belong in here."""
    load_params: Callable[[], type[ParamsT]] = _load_no_params
    """Returns the pydantic model of the plugin's options: `load_from("MODULE", "CLASS")` or `lambda: CLASS`. Its
    defaults are the plugin's defaults. The model can be next to the implementation, unless that module imports torch or
    an optional package. By default, the plugin has no options."""
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

    @cached_property
    def params(self) -> type[ParamsT]:
        """The model that `load_params` returns.

        Raises:
            PluginError: the model cannot be imported, or it does not fit the spec.
        """
        from pydantic import BaseModel

        subject = f"{type(self).__name__} {self.name!r}"
        try:
            model = self.load_params()
        except Exception as error:
            raise PluginError(
                "plugin-not-loadable",
                f"{subject}: its options cannot be loaded: {type(error).__name__}: {error}.",
                "Let `load_params` of the plugin spec return the class of its options.",
            ) from error
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            problem = f"load_params must return a pydantic model class, not {model!r:.80}"
        elif self.family_option is not None and self.family_option not in model.model_fields:
            problem = f"family_option is {self.family_option!r}, which params does not have"
        elif taken := sorted(self._reserved & model.model_fields.keys()):
            problem = f"the core uses the name `{taken[0]}` itself; params must not have that field"
        else:
            return model
        raise PluginError("bad-plugin-spec", f"{subject}: {problem}.", "`rllm plugins doctor` checks all plugin specs.")
