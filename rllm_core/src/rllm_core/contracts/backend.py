"""Backends: where weights live. They sample, compute log-probs, update and save."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rllm_core.contracts.plugin import GIVES_FACT, ParamsT, Plugin

if TYPE_CHECKING:
    from pathlib import Path

    from rllm_core.contracts.chosen import PluginChoice
    from rllm_core.contracts.engine import EnginePlugin, Overlap, RolloutEngine
    from rllm_core.contracts.finding import Finding
    from rllm_core.contracts.loss import LossPlugin
    from rllm_core.contracts.renderer import RendererPlugin
    from rllm_core.contracts.translation import Translation
    from rllm_core.data.batch import TokenBatch
    from rllm_core.data.record import OptimizerStep, TokenTrace
    from rllm_core.schema.run_config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a backend can do; a run that asks for more stops at start."""

    trains: bool = True
    """Whether it trains. One that only samples serves ``rllm eval``; a training run with it is refused."""
    losses: frozenset[str] = frozenset()
    """Losses it knows by itself, by name."""
    custom_losses: bool = False
    """Whether it runs any `LossPlugin` written in torch."""
    installed_losses_only: bool = False
    """Whether losses run in other processes, which find by name what is installed, and not what this program
    registered."""
    columns: frozenset[str] = frozenset()
    """Batch columns it can fill, such as ``old_logprobs`` or ``values``."""
    full_logprobs: bool = True
    """Whether its own engine reports log-probs before truncation where top-p or top-k truncate. False: it reports none
    there (NaN), and old log-probs are then the trainer's. Where settings decide, `BackendPlugin.check` refuses."""
    stop_texts: bool = False
    """Whether its own engine ends replies at `SamplingParams.stop`."""
    token_ids: bool = True
    """Whether prompts and replies are token ids of the model, so that another process can render prompts. False: they
    stand for messages, which this process alone knows."""
    overlap: frozenset[Overlap] = frozenset()
    """With which weights its own engine samples while `process` and `update` run.
    ``pinned``: those of `SamplingParams.weight_version`, as long as they are served. ``latest``: the newest that are
    published, at each token (with `Completion.version_spans`) or at the begin of each call. Empty: none; asynchronous
    training is refused. Where settings decide, `BackendPlugin.check_run` refuses."""
    token_trace: bool = False
    """Whether `Backend.update` gives a token trace where the plan asks for one. A backend without it is never asked."""


@dataclass(frozen=True, kw_only=True)
class KlTerm:
    """A KL divergence from the reference model, added to every sampled token's loss."""

    beta: float
    """Its weight, greater than 0."""
    estimator: Literal["k1", "k2", "k3"]
    """See `kl_divergence` of rllm-backend-kit."""


@dataclass(frozen=True, kw_only=True)
class RolloutCorrection:
    """Truncated importance sampling: policy losses are weighted by old over sampling probability, within bounds."""

    mode: Literal["token", "sequence"] | None
    """A ratio per token, or the product over a row (a trajectory, or one segment of it where its history was rewritten)
    for all of its tokens. None: every token that is not rejected has the weight 1."""
    cap: float
    """Largest weight."""
    floor: float
    """Tokens or sequences whose ratio is below this weigh 0."""
    beyond_cap: Literal["truncate", "mask"]
    """Whether a ratio above the cap weighs its token by `cap` or by 0."""
    reject: Mapping[str, float | tuple[float, float]] = field(default_factory=dict)
    """Rules by name, with their thresholds. Tokens that a rule rejects have the weight 0."""


@dataclass(frozen=True, kw_only=True)
class UpdatePlan:
    """How to turn one batch into an update."""

    global_step: int
    """The step being made, from 0."""
    losses: Mapping[str, PluginChoice[LossPlugin[Any]]]
    """The loss of each role in the batch."""
    aggregation: str
    """How token losses become one number; see ``rllm_core.updates.aggregation``."""
    entropy_coeff: float
    """Weight of the entropy bonus in this step."""
    seed: int
    """For whatever is random in the update, such as the order of minibatches."""
    kl: KlTerm | None = None
    """Needs `TokenBatch.ref_logprobs`."""
    rollout_correction: RolloutCorrection | None = None
    """Needs old log-probs that the trainer computed."""
    trace: bool = False
    """Whether `UpdateResult.trace` and `optimizer_steps` are wanted: the record of the run keeps tokens."""


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """What an update did."""

    metrics: Mapping[str, float]
    """Finite numbers by name, such as ``actor/loss``."""
    trace: TokenTrace | None = None
    """Where `UpdatePlan.trace` asks for it, and only there."""
    optimizer_steps: tuple[OptimizerStep, ...] = ()
    """In order, where `UpdatePlan.trace` asks for them."""
    made_with: UpdatePlan | None = None
    """The plan that the update followed, where settings of the backend leave out terms of the plan that was asked for;
    None: it followed that plan."""


def recomputes_old_logprobs(config: RunConfig) -> bool:
    """Whether old log-probs come from the trainer's own forward pass in a run with these settings."""
    correction = config.rllm.algorithm.rollout_correction
    return correction.is_active if correction.bypass_mode is None else not correction.bypass_mode


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What a backend is given when a run starts."""

    config: RunConfig
    backend_config: Any
    """The backend's own sections of the config, validated by its `params` model."""
    seed: int
    total_steps: int
    """Length of the whole run in steps, for schedules."""
    needs: frozenset[str] = frozenset()
    """Columns that `process` will be asked for, ``old_logprobs`` aside."""
    engine: PluginChoice[EnginePlugin[Any]] | None = None
    """The rollout engine to host; None: the backend's own. Given to backends that honour ``rllm.rollout.engine``."""
    renderer: PluginChoice[RendererPlugin[Any]] | None = None
    """The renderer of the run; None: the model's chat template. `make_renderer` of rllm-backend-kit makes either."""
    versions_served: int = 1
    """How many of the versions that were published last `SamplingParams.weight_version` may ask for."""
    overlaps: bool = False
    """Whether attempts sample while `process` and `update` run: rounds are played ahead."""
    calls_tools: bool = False
    """Whether the model may call tools; `make_renderer` then refuses a renderer that cannot write or read calls."""

    @property
    def recomputes_old_logprobs(self) -> bool:
        """Whether `process` takes old log-probs from the trainer's own forward pass, not from the sampler."""
        return recomputes_old_logprobs(self.config)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a run will take of a machine, as far as it can be told before anything is loaded."""

    title: str
    """Heading of `rows`, such as ``Memory on cuda:0, at most``."""
    rows: tuple[tuple[str, str], ...]
    """What, and how much."""
    warnings: tuple[str, ...] = ()
    """Why the run may not fit, and which keys help."""


@dataclass(frozen=True, kw_only=True)
class SharedKey:
    """One setting that a backend keeps under a path of its own and the core under another; the two always agree.

    Of the two values the one from the higher tier counts (command line, files, environment, packaged YAML); in the
    same tier the core's, unless it is null. See ``rllm.config.sharing``.
    """

    native: str
    """The backend's path, such as ``trainer.total_training_steps``."""
    rllm: str
    """The core's path, such as ``rllm.trainer.total_batches``. Several native paths may share it."""
    spelled: tuple[tuple[Any, Any], ...] = ()
    """Values that are written differently, as (core's, backend's): ``((-1, None),)``."""
    while_null: str | None = None
    """Another key of the core, which sets the native key while `rllm` is null."""
    deprecated: bool = True
    """Whether users who set the native path are told to set the core's instead."""


@dataclass(frozen=True, kw_only=True)
class DerivedKey:
    """A native key that follows from others, unless a user sets it.

    Where it is the backend's `model_key`, the derived model chooses the recipe of the environment.
    """

    native: str
    of: tuple[str, ...]
    """Paths whose values `derive` is given, in order: the core's, or the backend's own (not derived ones)."""
    derive: Callable[..., Any]
    """Takes plain values as in YAML, not validated yet: None for what is null or not set, the default in `params` for a
    key of the backend's own that no layer gives."""


class Backend(ABC):
    """One instance serves one run. What it can do is said by its record, so that a run is checked before it loads."""

    def check_checkpoint(self, run: RunContext, directory: Path) -> None:  # noqa: B027  (most backends start in seconds)
        """Refuse before `start` what `load` would refuse after it, as far as files tell.

        Args:
            run: as `start` gets it next.
            folder: what `save` wrote.

        Raises:
            CheckpointError: this run cannot go on from it.
        """

    @abstractmethod
    async def start(self, run: RunContext) -> RolloutEngine:
        """Load the model and return the engine that samples from it. Cancelled where the user stops the run; `close`
        ends what has begun."""

    async def process(self, batch: TokenBatch, needs: frozenset[str]) -> TokenBatch:
        """Return the batch with the columns named in `needs` filled.

        ``old_logprobs`` are those of the sampler, or the trainer's own where the run asks for them
        (`RunContext.recomputes_old_logprobs`) and in rows where the sampler reported none
        (`TokenBatch.old_logprobs_from`).
        """
        return batch

    @abstractmethod
    async def update(self, batch: TokenBatch, plan: UpdatePlan) -> UpdateResult:
        """Forward, backward, optimiser. Rollouts still use the old weights."""

    @abstractmethod
    async def sync_weights(self, version: int) -> None:
        """Rollouts use the new weights from here on, and say so in `Completion.weight_version`."""

    @abstractmethod
    async def save(self, directory: Path) -> None:
        """Write everything needed to go on exactly into an existing empty folder. No pickle."""

    @abstractmethod
    async def load(self, directory: Path) -> None:
        """Take up what `save` wrote. Called after `start`."""

    async def close(self) -> None:  # noqa: B027  (nothing to release is a valid answer)
        """Release processes, memory and connections."""


@dataclass(frozen=True, kw_only=True)
class BackendPlugin(Plugin[ParamsT]):
    """Offers a backend. Chosen by ``--backend``, ``rllm.backend`` or ``rllm/backend=NAME``.

    `params` is the model of the backend's own top-level config sections (``model``, ``training``, …). A field
    ``data`` or ``sampling`` holds keys it adds to these sections of the core; a field ``rllm`` is refused. `check` is
    given these sections.
    """

    kind: ClassVar[str] = "backend"

    load: Callable[[], type[Backend]]
    config_yaml: Callable[[], Path] | None = field(default=None, metadata=GIVES_FACT)
    """The file ``rllm/backend/<name>.yaml`` with the backend's defaults; None when those of `params` are all. It begins
    with ``# @package _global_`` and sets ``rllm: {backend: NAME}``. A section that another system reads is
    ``Annotated[dict[str, Any], AsPackaged()]`` in `params`: its keys and types are those of the composed YAML."""
    config_search_path: tuple[str, ...] = ()
    """Further places where Hydra finds what that file asks for, such as ``pkg://verl.trainer.config``."""
    profiles: Mapping[str, str] = field(default_factory=dict)
    """Ready-made settings above that file, by name, with one line on each: ``{"cpu": "Without a GPU."}``. The file of
    one is ``rllm/backend/<name>/<profile>.yaml`` in the same folder; its defaults list begins with
    ``/rllm/backend/<name>``. Chosen by ``rllm.profile`` or ``--profile``."""
    shared_keys: tuple[SharedKey, ...] = ()
    derived_keys: tuple[DerivedKey, ...] = ()
    unused_keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of its own that nothing acts on, with what to do instead: ``{"trainer.resume_mode": "Use --resume."}``;
    ``critic.*`` stands for everything in a section. A user's value there stops the run, unless it is the one that the
    key has anyway. Shared keys never do."""
    training_keys: frozenset[str] = frozenset()
    """Keys of its own that act in training alone; ``critic.*`` stands for everything in a section. ``rllm eval``
    refuses one on its command line, and so does ``rllm train`` beside ``rllm.trainer.val_only``. A saved evaluation
    goes on whatever they are."""
    translate: Callable[[Mapping[str, Any]], Translation] | None = None
    """For ``rllm config convert``. Takes a configuration that was written for the system below the backend: dotted keys
    with plain values. Says what `shared_keys` and `unused_keys` cannot. None: keys keep their names."""
    unused_keys_by_profile: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """As `unused_keys`, by profile, for what the sampler or trainer of that profile does not act on."""
    column_sections: Mapping[str, str] = field(default_factory=dict)
    """Top-level sections of its own that serve one column, by that column: ``{"values": "critic"}``. A user's value in
    one is refused in a run that does not need the column."""
    check_run: Callable[[RunConfig, Any], None] | None = None
    """Takes the configuration of the run and the backend's own sections, and raises ConfigError for what `check` cannot
    see, such as a setting that does not go with ``rllm.async_training``. Called where `check` is."""
    model_key: str = "model.name"
    """The config key that ``--model`` sets."""
    learning_rate_key: str = "training.learning_rate"
    """The config key that `build_train_config(lr=…)` sets."""
    lora_rank_key: str = "model.lora_rank"
    """The config key that `build_train_config(lora_rank=…)` sets."""
    minibatches_key: str | None = None
    """The config key that says into how many optimiser steps a pass over a batch is dealt; None: there is none."""
    footprint: Callable[[ParamsT, RunConfig, frozenset[str]], Footprint | None] | None = None
    """Estimates what a run takes, from the backend's own sections, the core's, and the columns that `process` will be
    asked for. Shown by ``--dry-run``; must take a second or two, and ask no network. None: nothing to say."""
    check_renderer: Callable[[RunContext], None] | None = None
    """Makes the run's renderer and raises ConfigError if the renderer cannot read the model's chat template. Called by
    ``--dry-run``; must load no weights, and ask no network. None: only a start of the run tells."""
    fetch_model: Callable[[Path, Path], None] | None = None
    """For ``rllm export``. Takes the folder that `Backend.save` filled and an empty one, and writes the model there, as
    transformers or peft open it. Raises CheckpointError where it cannot. None: checkpoints hold it as ``model``."""
    examine_gpus: Callable[[], Iterable[Finding]] | None = None
    """For ``rllm plugins doctor --gpu``: what this machine has and lacks for training on its GPUs. Starts nothing, and
    takes seconds. None: the backend has nothing to do with GPUs."""
    capabilities: Capabilities
