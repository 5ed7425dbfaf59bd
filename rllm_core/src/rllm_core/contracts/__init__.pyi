# What `rllm_core.contracts` offers. A file is imported when one of its names is used.
from .agent import (
    Agent as Agent,
    AgentPlugin as AgentPlugin,
)
from .backend import (
    Backend as Backend,
    BackendPlugin as BackendPlugin,
    BackendWrapper as BackendWrapper,
    Capabilities as Capabilities,
    DerivedKey as DerivedKey,
    Finding as Finding,
    Footprint as Footprint,
    KlTerm as KlTerm,
    RolloutCorrection as RolloutCorrection,
    RunContext as RunContext,
    Severity as Severity,
    SharedKey as SharedKey,
    Translation as Translation,
    UpdatePlan as UpdatePlan,
    UpdateResult as UpdateResult,
    recomputes_old_logprobs as recomputes_old_logprobs,
)
from .chosen import (
    PluginChoice as PluginChoice,
    Registered as Registered,
)
from .dataset import (
    Dataset as Dataset,
    DatasetPlugin as DatasetPlugin,
)
from .engine import (
    Completion as Completion,
    Dtype as Dtype,
    EnginePlugin as EnginePlugin,
    EngineSetup as EngineSetup,
    EngineWrapper as EngineWrapper,
    FinishReason as FinishReason,
    HostedEngine as HostedEngine,
    NamedTensors as NamedTensors,
    OnTokens as OnTokens,
    Overlap as Overlap,
    RolloutEngine as RolloutEngine,
    SamplingParams as SamplingParams,
    TopTokens as TopTokens,
)
from .environment import (
    Environment as Environment,
    EnvironmentPlugin as EnvironmentPlugin,
    Outcome as Outcome,
    Split as Split,
)
from .estimator import (
    ALWAYS_FILLED as ALWAYS_FILLED,
    FILLED_BY_STAGES as FILLED_BY_STAGES,
    AdvantageEstimator as AdvantageEstimator,
    AdvantageInput as AdvantageInput,
    Advantages as Advantages,
    EstimatorPlugin as EstimatorPlugin,
    Level as Level,
    Scope as Scope,
    StatefulEstimator as StatefulEstimator,
)
from .grouping import (
    MIXED_ROLES as MIXED_ROLES,
    Compared as Compared,
    Grouping as Grouping,
    GroupingPlugin as GroupingPlugin,
)
from .loss import (
    ClippedTokens as ClippedTokens,
    LossInput as LossInput,
    LossPlugin as LossPlugin,
    PolicyLoss as PolicyLoss,
)
from .objective import (
    ObjectiveFlag as ObjectiveFlag,
    ObjectivePlugin as ObjectivePlugin,
)
from .observer import (
    Observer as Observer,
    ObserverPlugin as ObserverPlugin,
)
from .params import (
    NoParams as NoParams,
    Params as Params,
)
from .plugin import (
    API_VERSION as API_VERSION,
    GIVES_FACT as GIVES_FACT,
    Plugin as Plugin,
)
from .rejection import (
    RejectionMode as RejectionMode,
    RejectionPlugin as RejectionPlugin,
    RejectionResult as RejectionResult,
)
from .renderer import (
    AUTO_RENDERER as AUTO_RENDERER,
    PlainTextRenderer as PlainTextRenderer,
    Renderer as Renderer,
    RendererPlugin as RendererPlugin,
    RendererSetup as RendererSetup,
    StreamingRenderer as StreamingRenderer,
)
from .reward import (
    GroupReward as GroupReward,
    Reward as Reward,
    RewardPlugin as RewardPlugin,
    RewardScope as RewardScope,
    Rollout as Rollout,
    Score as Score,
)
from .sampler import (
    Sampler as Sampler,
    SamplerPlugin as SamplerPlugin,
    SamplerSetup as SamplerSetup,
    TaskResult as TaskResult,
)
from .sandbox import (
    CommandResult as CommandResult,
    Sandbox as Sandbox,
    SandboxPlugin as SandboxPlugin,
    SandboxSetup as SandboxSetup,
)
from .stage import (
    RolloutRequest as RolloutRequest,
    Runner as Runner,
    Stage as Stage,
    StageContext as StageContext,
    StagePlugin as StagePlugin,
)
from .teacher import (
    DistributionTeacher as DistributionTeacher,
    Teacher as Teacher,
    TeacherPlugin as TeacherPlugin,
    TeacherSetup as TeacherSetup,
)
from .tracker import (
    TrackedRun as TrackedRun,
    Tracker as Tracker,
    TrackerPlugin as TrackerPlugin,
)
from .train_step import (
    Decision as Decision,
    TrainStep as TrainStep,
)
from .weight_comparison import (
    KnownFault as KnownFault,
    Probe as Probe,
    ScoringEngine as ScoringEngine,
    TensorDifference as TensorDifference,
    WeightComparison as WeightComparison,
)
from .workflow import (
    AGENT_KEYS as AGENT_KEYS,
    TURN_KEYS as TURN_KEYS,
    OpenedRun as OpenedRun,
    Workflow as Workflow,
    WorkflowContext as WorkflowContext,
    WorkflowPlugin as WorkflowPlugin,
)
