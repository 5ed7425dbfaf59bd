"""Backends: where weights live. They sample, compute log-probs, update and save."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rllm_core.contracts.plugin import GIVES_FACT, ParamsT, Plugin
from rllm_core.errors import format_problem

if TYPE_CHECKING:
    from pathlib import Path

    from rllm_core.contracts.chosen import PluginChoice
    from rllm_core.contracts.engine import EnginePlugin, Overlap, RolloutEngine
    from rllm_core.contracts.loss import LossPlugin
    from rllm_core.contracts.renderer import Renderer, RendererPlugin
    from rllm_core.contracts.weight_comparison import WeightComparison
    from rllm_core.data.batch import TokenBatch
    from rllm_core.data.record import OptimizerStep, TokenTrace
    from rllm_core.schema.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Translation:
    """The result of translating the config of a different system: values that replace its keys. Keys are dotted.

    Keys that are not listed here are in `shared_keys` or `unused_keys`, or they keep their name.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    """Config key -> value."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Key of the other system -> the key in `values` that replaces it."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Key of the other system without a counterpart -> the reason, or the alternative, in one or two sentences."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Config key -> the other system's default, if it differs from ours."""
    notes: tuple[str, ...] = ()
    """Other facts that the user needs, or settings to make, each in one or two sentences."""


Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One result of ``rllm plugins doctor``. ``error`` means that an installed plugin or package cannot be used."""

    code: str
    """The short name of the finding, in the same form as the code of an `RllmError`."""
    severity: Severity
    subject: str
    """The subject of the finding: a plugin, a name or a setting."""
    problem: str
    remedy: str
    traceback: str = ""

    def printed(self, *, debug: bool = False) -> str:
        """Return the lines that ``rllm plugins doctor`` prints, with the traceback if `debug`."""
        details = self.traceback if debug else ""
        return format_problem(f"{self.subject}: {self.problem}", self.remedy, details, f"{self.severity}[{self.code}]")


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """The features of a backend. A run that needs more features stops before the model is loaded."""

    trains: bool = True
    """False if the backend only samples. Such a backend serves ``rllm eval``, and training runs with it are rejected.
    """
    losses: frozenset[str] = frozenset()
    """Names of the losses that the backend implements itself."""
    custom_losses: bool = False
    """True if the backend runs any `LossPlugin` written in torch."""
    installed_losses_only: bool = False
    """True if losses run in other processes. These processes find installed losses by name. They cannot find losses
    that this program registered."""
    columns: frozenset[str] = frozenset()
    """Batch columns that the backend can fill, such as ``old_logprobs`` or ``values``. ``scores`` is no column: a run
    that needs it trains a reward model, and the old log-prob of a row's last token is the row's score."""
    full_logprobs: bool = True
    """True if the backend's own engine reports log-probs before truncation when top-p or top-k truncate. If False, the
    engine reports NaN for such tokens, and the trainer computes the old log-probs. If this depends on settings,
    `BackendPlugin.check` raises the error."""
    stop_texts: bool = False
    """True if the backend's own engine ends responses at `SamplingParams.stop`."""
    token_ids: bool = True
    """True if prompts and responses are token ids of the model. Another process can then render prompts. If False, the
    ids represent messages, and only this process can decode them."""
    overlap: frozenset[Overlap] = frozenset()
    """The weights that the backend's own engine can sample with while `process` and `update` run.

    - ``fixed``: the version in `SamplingParams.weight_version`, as long as the engine serves that version.
    - ``latest``: the latest published version, either for each token (with `Completion.version_spans`) or at the start
      of each call.

    If empty, the engine cannot sample during updates, and asynchronous training is rejected. If this depends on
    settings, `BackendPlugin.check_run` raises the error.
    """
    observations: bool = False
    """True if `Backend.update` trains on `TokenBatch.observation_weights`."""
    targets: bool = False
    """True if `Backend.update` trains on `TokenBatch.targets`."""
    token_trace: bool = False
    """True if `Backend.update` returns a token trace when the plan requests one. Other backends never receive such a
    plan."""


@dataclass(frozen=True, kw_only=True)
class KlTerm:
    """A KL divergence from the reference model, added to every sampled token's loss."""

    beta: float
    """Weight of the term, greater than 0."""
    estimator: Literal["k1", "k2", "k3", "k3_unbiased"]
    """The estimator; see `kl_term` of rllm-backend-kit."""


@dataclass(frozen=True, kw_only=True)
class RolloutCorrection:
    """Truncated importance sampling: policy losses are multiplied by the old probability divided by the sampling
    probability, within bounds."""

    mode: Literal["token", "sequence"] | None
    """``token``: one ratio per token. ``sequence``: the product of the ratios over a row, for all tokens of the row. A
    row is a trajectory, or one segment of a trajectory whose history was rewritten. None: every token that no rule
    rejects has the weight 1."""
    cap: float
    """Largest weight."""
    floor: float
    """Tokens or sequences whose ratio is below this value get the weight 0."""
    beyond_cap: Literal["truncate", "mask"]
    """The weight of a token whose ratio is above `cap`: ``truncate`` gives it the weight `cap`, ``mask`` gives it 0."""
    reject: Mapping[str, float | tuple[float, float]] = field(default_factory=dict)
    """Rejection rules by name, with their thresholds. Tokens that a rule rejects get the weight 0."""
    mean_weight: float | None = 1.0
    """Divisor of the weights. None: their mean over the batch, which `complete_plan` of rllm-backend-kit computes."""


@dataclass(frozen=True, kw_only=True)
class UpdatePlan:
    """The settings with which a backend turns one batch into an update."""

    global_step: int
    """Number of the current step, from 0."""
    losses: Mapping[str, PluginChoice[LossPlugin[Any]]]
    """The loss of each role in the batch."""
    aggregation: str
    """The rule that reduces token losses to one number; see ``rllm_core.updates.aggregation``."""
    entropy_coeff: float
    """Weight of the entropy bonus in this step."""
    seed: int
    """Seed for random choices in the update, such as the order of minibatches."""
    kl: KlTerm | None = None
    """The KL term, or None. It needs `TokenBatch.ref_logprobs`."""
    rollout_correction: RolloutCorrection | None = None
    """The importance-sampling correction, or None. It needs old log-probs that the trainer computed."""
    trace: bool = False
    """True if the backend must fill `UpdateResult.trace` and `UpdateResult.optimizer_steps`, because the run records
    its tokens."""


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """The result of an update."""

    metrics: Mapping[str, float]
    """Finite numbers by name, such as ``actor/loss``."""
    trace: TokenTrace | None = None
    """The token trace. Set only if `UpdatePlan.trace` is true."""
    optimizer_steps: tuple[OptimizerStep, ...] = ()
    """The optimizer steps in order. Set only if `UpdatePlan.trace` is true."""
    made_with: UpdatePlan | None = None
    """The plan that the update used, if backend settings drop some terms of the requested plan. None if the update used
    the requested plan."""


def recomputes_old_logprobs(config: RunConfig) -> bool:
    """Return True if a run with these settings takes old log-probs from the trainer's own forward pass."""
    correction = config.rllm.algorithm.rollout_correction
    return correction.is_active if correction.bypass_mode is None else not correction.bypass_mode


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The arguments that a backend receives when a run starts."""

    config: RunConfig
    backend_config: Any
    """The backend's own sections of the config, validated by its `params` model."""
    seed: int
    total_steps: int
    """Length of the whole run in steps, for schedules."""
    needs: frozenset[str] = frozenset()
    """Columns that `process` must fill, apart from ``old_logprobs``."""
    engine: PluginChoice[EnginePlugin[Any]] | None = None
    """The rollout engine to host. None if the backend samples with its own engine. Only backends that read
    ``rllm.rollout.engine`` receive an engine."""
    renderer: PluginChoice[RendererPlugin[Any]] | None = None
    """The run's renderer. None if the run uses the model's chat template. `make_renderer` of rllm-backend-kit makes
    both kinds."""
    versions_served: int = 1
    """Number of published versions, counted back from the latest, that `SamplingParams.weight_version` may request."""
    overlaps: bool = False
    """True if rollouts are sampled while `process` and `update` run, because rollout batches are generated ahead."""
    calls_tools: bool = False
    """True if the model may call tools. `make_renderer` then rejects a renderer that cannot write or read tool calls.
    """

    @property
    def recomputes_old_logprobs(self) -> bool:
        """True if `process` takes old log-probs from the trainer's own forward pass and not from the sampler."""
        return recomputes_old_logprobs(self.config)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """An estimate of the resources that a run needs, made before anything is loaded."""

    title: str
    """Heading of `rows`, such as ``Memory on cuda:0, at most``."""
    rows: tuple[tuple[str, str], ...]
    """Pairs of a resource and its amount."""
    warnings: tuple[str, ...] = ()
    """Reasons why the run may not fit, with the keys that help."""


@dataclass(frozen=True, kw_only=True)
class SharedKey:
    """A setting that has one key in the backend's config and a different key in the core's config. Both always have the
    same value.

    If the two values differ, the value from the higher tier wins. The tiers are: command line, files, environment,
    packaged YAML. In the same tier the core's value wins, unless it is null. See ``rllm.config.passes``.
    """

    native: str
    """The backend's key, such as ``trainer.total_training_steps``."""
    rllm: str
    """The core's key, such as ``rllm.trainer.total_batches``. Several native keys may share it."""
    spelled: tuple[tuple[Any, Any], ...] = ()
    """Values that are written differently, as pairs of the core's value and the backend's value: ``((-1, None),)``."""
    while_null: str | None = None
    """A second key of the core. It sets the native key while `rllm` is null."""
    deprecated: bool = True
    """True if users who set the native key get a warning to set the core's key instead."""


@dataclass(frozen=True, kw_only=True)
class DerivedKey:
    """A native key whose value is computed from other keys, unless a user sets it.

    If the native key is the backend's `model_key`, the computed model selects the environment's recipe.
    """

    native: str
    of: tuple[str, ...]
    """The keys whose values `derive` receives, in order. They are keys of the core or of the backend, but not derived
    keys."""
    derive: Callable[..., Any]
    """Takes plain YAML values that are not validated yet. A value is None if it is null or not set. A backend key that
    no layer sets has its default from `params`."""


class Backend(ABC):
    """The interface to the trained model. One instance serves one run.

    Its plugin spec declares its capabilities, so that rllm can check a run before the model is loaded.
    """

    def check_checkpoint(self, run: RunContext, directory: Path) -> None:  # noqa: B027  (most backends start in seconds)
        """Reject a checkpoint before `start` if the files show that `load` would reject it later.

        Args:
            run: the context that `start` receives next.
            directory: a directory that `save` filled.

        Raises:
            CheckpointError: this run cannot continue from the checkpoint.
        """

    @abstractmethod
    async def start(self, run: RunContext) -> RolloutEngine:
        """Load the model and return the engine that samples from it.

        The call is cancelled if the user stops the run. `close` then stops what has begun.
        """

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        """Return the batch with the columns named in `needs` filled.

        ``old_logprobs`` come from the sampler, with two exceptions. They come from the trainer's own forward pass if
        the run requires it (`RunContext.recomputes_old_logprobs`), and in rows for which the sampler reported none
        (`TokenBatch.old_logprobs_from`).
        """
        return batch

    @abstractmethod
    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        """Run forward and backward passes and optimizer steps. Rollouts still use the old weights."""

    @abstractmethod
    async def sync_weights(self, version: int) -> None:
        """Give the new weights to the rollout engine. Later completions report `version` in
        `Completion.weight_version`."""

    def weight_comparison(self) -> WeightComparison | None:
        """Return the comparison of each sampler's weights with the trained weights. Called after `start`.

        None if the backend has no comparison. The run then reports that the sampler's weights are not checked.
        """
        return None

    @abstractmethod
    async def save(self, directory: Path) -> None:
        """Write everything that an exact resume needs into an existing empty directory. Do not use pickle."""

    @abstractmethod
    async def load(self, directory: Path) -> None:
        """Restore the state that `save` wrote. Called after `start`."""

    async def close(self) -> None:  # noqa: B027  (nothing to release is a valid answer)
        """Release processes, memory and connections."""


class BackendWrapper(Backend):
    """A backend that wraps an inner backend. A subclass overrides methods and calls the inner backend there.

    `Observer.wrap_backend` may return one.
    """

    def __init__(self, backend: Backend) -> None:
        self.inner = backend

    def check_checkpoint(self, run: RunContext, directory: Path) -> None:
        """Check the checkpoint with the inner backend."""
        self.inner.check_checkpoint(run, directory)

    async def start(self, run: RunContext) -> RolloutEngine:
        """Start the inner backend."""
        return await self.inner.start(run)

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        """Fill the columns with the inner backend."""
        return await self.inner.process(batch, needs)

    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        """Update the inner backend's weights."""
        return await self.inner.update(batch, plan)

    async def sync_weights(self, version: int) -> None:
        """Sync the inner backend's weights."""
        await self.inner.sync_weights(version)

    def weight_comparison(self) -> WeightComparison | None:
        """Return the inner backend's comparison."""
        return self.inner.weight_comparison()

    async def save(self, directory: Path) -> None:
        """Save the inner backend's state."""
        await self.inner.save(directory)

    async def load(self, directory: Path) -> None:
        """Restore the inner backend's state."""
        await self.inner.load(directory)

    async def close(self) -> None:
        """Close the inner backend."""
        await self.inner.close()


@dataclass(frozen=True, kw_only=True)
class BackendPlugin(Plugin[ParamsT]):
    """A plugin spec that offers a backend. Users choose it with ``--backend``, ``rllm.backend`` or
    ``rllm/backend=NAME``.

    `params` is the model of the backend's own top-level config sections (``model``, ``training``, …). In it, a field
    ``data`` or ``sampling`` adds keys to the core section with this name. A field ``rllm`` is rejected. `check`
    receives these sections.

    The plugin spec declares the backend's features. A run that needs more features stops before anything is loaded::

        from pathlib import Path
        from rllm_core.contracts import Backend, BackendPlugin, Capabilities, UpdateResult
        from rllm_core.plugins import hookimpl

        class Nowhere(Backend):
            async def start(self, run):
                raise NotImplementedError("return a RolloutEngine here")

            async def update(self, batch, plan):
                return UpdateResult(metrics={})

            async def sync_weights(self, version): ...
            async def save(self, directory): ...
            async def load(self, directory): ...

        @hookimpl
        def rllm_backends():
            yield BackendPlugin(
                name="nowhere",
                summary="Trains nothing.",
                load=lambda: Nowhere,
                config_yaml=lambda: Path("rllm_example/config/rllm/backend/nowhere.yaml"),
                capabilities=Capabilities(custom_losses=True),
            )
    """

    kind: ClassVar[str] = "backend"
    _reserved: ClassVar[frozenset[str]] = frozenset({"rllm"})

    load: Callable[[], type[Backend]]
    config_yaml: Callable[[], Path] | None = field(default=None, metadata=GIVES_FACT)
    """The file ``rllm/backend/<name>.yaml`` with the backend's defaults. None if `params` has all defaults. The file
    begins with ``# @package _global_`` and sets ``rllm: {backend: NAME}``. Declare a section that another system reads
    as ``Annotated[dict[str, Any], ExternalSection()]`` in `params`. Its keys and types then come from the composed
    YAML."""
    config_search_path: tuple[str, ...] = ()
    """Further places where Hydra searches for the configs that the file includes, such as
    ``pkg://verl.trainer.config``."""
    profiles: Mapping[str, str] = field(default_factory=dict)
    """Profiles: predefined settings that override that file. Maps each name to a one-line description, for example
    ``{"cpu": "Without a GPU."}``. A profile's file is ``rllm/backend/<name>/<profile>.yaml`` in the same directory. Its
    defaults list begins with ``/rllm/backend/<name>``. Users choose a profile with ``rllm.profile`` or ``--profile``.
    """
    shared_keys: tuple[SharedKey, ...] = ()
    derived_keys: tuple[DerivedKey, ...] = ()
    unused_keys: Mapping[str, str] = field(default_factory=dict)
    """The backend's own keys that no code reads, each with the alternative: ``{"trainer.resume_mode": "Use
    --resume."}``. ``critic.*`` means all keys of a section. If a user sets such a key, the run stops, unless the value
    equals the effective value. Shared keys are never rejected."""
    training_keys: Callable[[], frozenset[str]] = field(default=frozenset, metadata=GIVES_FACT)
    """Returns the backend's own keys that have an effect only in training. ``critic.*`` means all keys of a section.
    ``rllm eval`` rejects them on its command line, and ``rllm train`` rejects them together with
    ``rllm.trainer.val_only``. They do not prevent the resume of a saved evaluation."""
    translate: Callable[[Mapping[str, Any]], Translation] | None = None
    """Translates a config of the underlying system, for ``rllm config convert``. Takes a mapping of dotted keys to
    plain values. Returns only the changes that `shared_keys` and `unused_keys` do not cover. None if keys keep their
    names."""
    unused_keys_by_profile: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Like `unused_keys`, by profile: keys that the sampler or the trainer of a profile does not read."""
    column_sections: Mapping[str, str] = field(default_factory=dict)
    """The backend's own top-level sections that serve one column, by column: ``{"values": "critic"}``. If a run does
    not need the column, a user's value in its section is rejected."""
    check_run: Callable[[RunConfig, Any], None] | None = None
    """Takes the run's config and the backend's own sections. Raises ConfigError for conflicts that `check` cannot
    detect, such as a setting that ``rllm.async_training`` does not allow. Called at the same times as `check`."""
    model_key: str = "model.name"
    """The config key that ``--model`` sets."""
    learning_rate_key: str = "training.learning_rate"
    """The config key that `build_train_config(lr=…)` sets."""
    lora_rank_key: str = "model.lora_rank"
    """The config key that `build_train_config(lora_rank=…)` sets."""
    minibatches_key: str | None = None
    """The config key for the number of optimizer steps in a pass over a batch. None if the backend has no such key."""
    footprint: Callable[[ParamsT, RunConfig, frozenset[str]], Footprint | None] | None = None
    """Estimates the resources of a run. Takes the backend's own sections, the run's config and the columns that
    `process` must fill. ``--dry-run`` prints the result. It must take at most a few seconds and use no network. None if
    the backend gives no estimate."""
    early_renderer: Callable[[RunContext], tuple[Renderer, int] | None] | None = None
    """Returns the run's renderer and `RolloutEngine.max_context`. ``--dry-run`` measures the lengths of rows with them.
    Raises ConfigError if the renderer cannot read the model's chat template. It must load no weights and use no
    network. It returns None if it would need these. Without this function, such an error appears when the run starts.
    """
    fetch_model: Callable[[Path, Path], None] | None = None
    """Writes a model in the format of transformers or peft, for ``rllm export``. Takes a directory that `Backend.save`
    filled and an empty directory, and writes the model into the latter. Raises CheckpointError if it cannot. If None,
    the model is in the checkpoint's directory ``model``."""
    examine_gpus: Callable[[], Iterable[Finding]] | None = None
    """Checks the GPU setup of this machine, for ``rllm plugins doctor --gpu``. It starts nothing and takes seconds.
    None if the backend does not use GPUs."""
    capabilities: Capabilities
