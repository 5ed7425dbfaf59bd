"""Sections about data, rollouts and the training loop: batches, sampling, agent, env, workflow, gateway and trainer."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rllm_core.schema.section import (
    ROLLOUT,
    TRAINING,
    Choice,
    Names,
    NoEffect,
    NonNegativeInt,
    PositiveInt,
    ReadBy,
    Rejected,
    Section,
    section,
)

PUBLIC_TOKEN = "my-shared-secret"
"""The default token in rLLM. It is published with rLLM's code, so it protects nothing."""


class StoreSection(Section):
    """Storage of traces."""

    path: Annotated[str | None, ReadBy()] = None
    """Database of traces. null means `gateway/traces.db` in the run directory."""


class ProcessingSection(Section):
    """Conversion of traces to trajectories."""

    groupby_key: Annotated[str | None, ReadBy()] = None
    """Metadata key by which traces are grouped into trajectories."""
    traj_name_key: Annotated[str | None, ReadBy()] = None
    """Metadata key whose value becomes the trajectory's name."""


class ProxySection(Section):
    """The proxy between an agent and the model."""

    host: Annotated[str, ReadBy()] = "127.0.0.1"
    """Address that the proxy listens on."""
    port: Annotated[int, ReadBy()] = Field(4000, gt=0, lt=65536)
    """Port that the proxy listens on."""
    mode: Annotated[Literal["subprocess", "external"], ReadBy()] = "subprocess"
    """`subprocess`: the run starts the proxy. `external`: the proxy is already running."""
    admin_token: Annotated[str | None, ReadBy()] = Field(None, min_length=1)
    """Token for administration of the proxy. null: rllm creates a token at first use."""

    @model_validator(mode="after")
    def _no_public_token_on_a_network(self) -> Self:
        if self.admin_token == PUBLIC_TOKEN and not is_loopback(self.host):
            raise ValueError(
                f"admin_token {PUBLIC_TOKEN!r} is rLLM's public default, and other machines can reach host "
                f"{self.host!r}; remove admin_token so that rllm creates one, or set host to 127.0.0.1"
            )
        return self


class SdkSection(Section):
    """Traces of agents that run outside a workflow."""

    store: StoreSection = section(StoreSection)
    processing: ProcessingSection = section(ProcessingSection)
    proxy: ProxySection = section(ProxySection)


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class DataSection(Section):
    """Tasks, batches and lengths."""

    train_dataset: Annotated[Choice | None, Names("dataset")] = None
    """Training tasks: a dataset's name, or a file to read. null means the environment's own tasks."""
    val_dataset: Annotated[Choice | None, Names("dataset"), ROLLOUT] = None
    """Validation tasks: a dataset's name, or a file to read. null means the environment's own tasks."""
    train_batch_size: Annotated[PositiveInt, ReadBy(options_of=("rejection",), core=True), TRAINING] = 64
    """Tasks per training step, at most the number of tasks in the dataset."""
    val_batch_size: Annotated[PositiveInt, ROLLOUT] = 32
    """Tasks per validation batch."""
    max_prompt_length: Annotated[PositiveInt, ROLLOUT] = 2048
    """Maximum number of tokens in the prompt of a model call."""
    max_response_length: Annotated[PositiveInt, ROLLOUT] = 2048
    """Maximum number of tokens that one model call may sample."""


class TrainSamplingSection(Section):
    """Token sampling in training."""

    temperature: Annotated[float, ReadBy()] = Field(1.0, ge=0)
    """Sampling temperature. 0 means greedy sampling."""
    top_p: Annotated[float, ReadBy()] = Field(1.0, gt=0, le=1)
    """Nucleus sampling threshold."""
    top_k: Annotated[int, ReadBy()] = Field(-1, ge=-1)
    """Sample from the k most likely tokens. -1 means all tokens."""


class ValSamplingSection(Section):
    """Token sampling in validation."""

    temperature: float = Field(1.0, ge=0)
    """Sampling temperature. 0 means greedy sampling."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling threshold."""
    top_k: int = Field(-1, ge=-1)
    """Sample from the k most likely tokens. -1 means all tokens."""


class SamplingSection(Section):
    """Token sampling."""

    train: Annotated[TrainSamplingSection, TRAINING] = section(TrainSamplingSection)
    val: Annotated[ValSamplingSection, ROLLOUT] = section(ValSamplingSection)


NO_ENVIRONMENT = "custom"
"""Value of ``rllm.env.name`` if no environment is chosen by name: the workflow itself provides the environment."""

WHILE_COUNTED_IN_BATCHES = NoEffect(
    lambda trainer: trainer.total_batches > 0,
    ": rllm.trainer.total_batches is {total_batches}",
    "Set one of the two.",
)
WHILE_TAKING_TURNS = NoEffect(
    lambda section: section.enable and not section.staleness_threshold,
    ": staleness_threshold is 0, so training is synchronous",
    "Set staleness_threshold to 1 or more, or remove this key.",
)


class AgentSection(Section):
    """The agent. It converts observations of the environment to chat messages, and the model's responses to actions."""

    name: Annotated[str, ReadBy(), Names("agent")] = "math_agent"
    """Name of the agent."""
    max_steps: Annotated[PositiveInt, ReadBy()] = 20
    """Maximum number of turns in a rollout."""
    trajectory_timeout: float | None = Field(None, gt=0)
    """Seconds after which a rollout ends with reason `timeout`. null means no limit."""
    overlong_filter: Annotated[bool, ReadBy()] = False
    """Mask rollouts that reached a limit of tokens, turns or time, in addition to `compact_filtering`."""
    agent_args: Annotated[dict[str, Any], ReadBy()] = Field(default_factory=dict)
    """Options of the agent."""
    engine_args: Annotated[dict[str, Any], ReadBy()] = Field(default_factory=dict)
    """Options of the backend's rollout engine. Only some backends read them."""


class EnvSection(Section):
    """The environment of the run."""

    name: Annotated[str, Names("environment")] = NO_ENVIRONMENT
    """Name of the environment. `rllm train NAME` sets it. `custom` means that the workflow itself provides the
    environment. The tasks then come from `data.train_dataset` or from Python."""
    env_args: dict[str, Any] = Field(default_factory=dict)
    """Options of the environment."""


class WorkflowSection(Section):
    """The procedure that produces a rollout."""

    use_workflow: Annotated[
        bool, Rejected("Rollouts are always made by the workflow `rllm.workflow.name`. Remove the key.", accepted=True)
    ] = False
    """Accepted for compatibility with rLLM configs. In rllm the agent loop is a workflow."""
    name: Annotated[str, Names("workflow")] = "single_turn_workflow"
    """Name of the workflow that produces a rollout."""
    workflow_args: dict[str, Any] = Field(default_factory=dict)
    """Options of the workflow."""
    n_parallel_tasks: PositiveInt = 256
    """Maximum number of concurrent rollouts."""
    retry_limit: PositiveInt = 3
    """Number of tries for each rollout, including the first one."""
    raise_on_error: bool = True
    """Stop the run if every try of a rollout failed. If false, the rollout ends with reason `error`."""


class RolloutSection(Section):
    """The number of rollouts and the engine that generates them."""

    n: Annotated[PositiveInt, ReadBy(), TRAINING] = 8
    """Rollouts per task during training."""
    n_val: Annotated[PositiveInt, ROLLOUT] = 1
    """Rollouts per task during validation."""
    engine: Annotated[Choice | None, ReadBy(), Names("engine")] = None
    """Name of the rollout engine that the backend hosts. null means the backend's own engine."""


def _console() -> list[Choice]:
    return ["console"]


OF_BUDGETS = ReadBy(options_of=("observer",))


class PricesSection(Section):
    """Your prices, in any currency. The metric `budget/cost` and `rllm.trainer.max_cost` use them."""

    sampled_per_million: Annotated[float, OF_BUDGETS, TRAINING] = Field(0.0, ge=0)
    """Price of a million sampled tokens."""
    trained_per_million: Annotated[float, OF_BUDGETS, TRAINING] = Field(0.0, ge=0)
    """Price of a million trained tokens."""
    per_hour: Annotated[float, OF_BUDGETS, TRAINING] = Field(0.0, ge=0)
    """Price of an hour, for example of rented machines."""

    @property
    def are_zero(self) -> bool:
        """True if everything is free."""
        return not (self.sampled_per_million or self.trained_per_million or self.per_hour)


class TrainerSection(Section):
    """The training loop."""

    total_epochs: Annotated[PositiveInt, WHILE_COUNTED_IN_BATCHES, TRAINING] = 10
    """Passes over the training tasks."""
    total_batches: Annotated[PositiveInt | Literal[-1], TRAINING] = -1
    """Number of training steps. -1 means that `total_epochs` determines it."""
    max_hours: Annotated[float | None, OF_BUDGETS, TRAINING] = Field(None, gt=0)
    """Budget of the run in hours, including the start of the backend and earlier starts. A run stops before the first
    step at which a budget is spent."""
    max_tokens: Annotated[PositiveInt | None, OF_BUDGETS, TRAINING] = None
    """Budget of the run in tokens: sampled tokens of all rollouts, including validation, plus the tokens of all rows of
    updates, prompts included. An update counts once, also with several epochs."""
    max_cost: Annotated[
        float | None,
        OF_BUDGETS,
        TRAINING,
        NoEffect(
            lambda section: section.prices.are_zero,
            " while every price in {section}.prices is 0",
            "Set a price, for example {section}.prices.per_hour=2.5, or remove this key.",
        ),
    ] = Field(None, gt=0)
    """Budget of the run in the currency of `prices`."""
    prices: PricesSection = section(PricesSection)
    logger: Annotated[list[Choice], Names("tracker")] = Field(default_factory=_console)
    """Names of the trackers that receive metrics."""
    observers: Annotated[list[Choice], Names("observer")] = Field(default_factory=list)
    """Names of the observers of the training loop."""
    project_name: str = Field("rllm-training", pattern=r"^[\w-][\w.-]*$")
    """Directory of the project's runs."""
    experiment_name: str = Field("default", pattern=r"^[\w-][\w.-]*$")
    """Directory of this run in the project's directory. If no user sets it, a run gets the name of its environment and
    a number, such as guess-2."""
    output_dir: str = Field("runs", min_length=1)
    """Directory that contains all projects, or its URL in an object store, such as s3://bucket/runs."""
    test_freq: Annotated[int, TRAINING] = Field(5, ge=-1)
    """Training steps between validations. 0 or -1 means never."""
    save_freq: Annotated[int, TRAINING] = Field(20, ge=-1)
    """Training steps between checkpoints. 0 or -1 means only at the end."""
    keep_checkpoints: Annotated[int, TRAINING] = Field(3, ge=2)
    """Number of latest checkpoints to keep. At least 2, in case one is damaged."""
    val_before_train: Annotated[bool, TRAINING] = True
    """Validate before the first step."""
    val_only: bool = False
    """Validate and stop without training."""
    on_changed_source: Literal["error", "warn"] = "error"
    """Reaction of --resume if a source, such as a training row or the file of a reward, differs from the source in the
    checkpoint. `error` stops the run. `warn` continues with a warning, for this start only."""
    seed: Annotated[NonNegativeInt, ROLLOUT] = 0
    """Seed of the run. All random numbers are derived from it."""

    @property
    def has_budget(self) -> bool:
        """True if the run counts its tokens and hours."""
        return not (self.max_hours is self.max_tokens is self.max_cost is None and self.prices.are_zero)


class AsyncTrainingSection(Section):
    """Asynchronous training: rollouts continue while weights are updated."""

    enable: Annotated[bool, TRAINING] = False
    """Generate rollouts of later steps during updates. Needs `staleness_threshold`."""
    staleness_threshold: Annotated[float, TRAINING] = Field(0.0, ge=0)
    """Maximum staleness, as a whole number of updates between sampling a token and training on it. 0 means synchronous
    training."""
    partial_rollout: Annotated[bool, TRAINING, WHILE_TAKING_TURNS] = False
    """false: all rollouts of a batch use one weight version, which is served until they end. true: rollouts switch to
    new weights as soon as possible, even within a response."""
    mini_batch_size: Annotated[
        PositiveInt,
        TRAINING,
        Rejected("A step trains on the groups of `data.train_batch_size` tasks. Set that key instead."),
    ] = 64
    """Accepted only at its default, for compatibility with rLLM configs."""
    fwd_bwd_group_size: Annotated[
        PositiveInt | None,
        TRAINING,
        Rejected("Set the size of micro-batches with the backend's own keys. See the backend's page."),
    ] = None
    """Accepted only at its default, for compatibility with rLLM configs."""
    trigger_parameter_sync_step: Annotated[
        PositiveInt,
        TRAINING,
        Rejected(
            "Weights are synced after every update. For k optimizer steps between two syncs, multiply "
            "`data.train_batch_size` by k, and set the backend's number of minibatches to k."
        ),
    ] = 1
    """Accepted only at its default, for compatibility with rLLM configs."""
    episode_offload_dir: Annotated[
        str | None,
        TRAINING,
        Rejected("rllm has no episode queue. Set `rllm.episode_logging.log_episodes` to store episodes on disk."),
    ] = None
    """Accepted only at its default, for compatibility with rLLM configs."""
    trajectory_group_offload_dir: Annotated[
        str | None,
        TRAINING,
        Rejected("rllm has no queue of groups. Set `rllm.record` to store the outcome of every trajectory on disk."),
    ] = None
    """Accepted only at its default, for compatibility with rLLM configs."""

    @property
    def staleness(self) -> int:
        """Maximum number of updates between sampling and training. 0 in synchronous training."""
        return int(self.staleness_threshold) if self.enable else 0

    @property
    def pins_weights(self) -> bool:
        """True if one fixed weight version generates a whole rollout batch that is generated ahead."""
        return self.staleness > 0 and not self.partial_rollout


class EpisodeLoggingSection(Section):
    """Storage of episodes on disk."""

    log_episodes: bool = False
    """Store every training episode."""
    episode_log_dir: str | None = Field(None, min_length=1)
    """Directory for the episodes. null means `episodes/` in the run directory."""


class PluginsSection(Section):
    """Selection of the plugins that may load."""

    allow: list[str] | None = None
    """Packages whose plugins may load. null means all."""
    import_modules: list[str] = Field(default_factory=list)
    """Modules to import first, for example a module that registers an estimator. They are installed or in the current
    directory."""
