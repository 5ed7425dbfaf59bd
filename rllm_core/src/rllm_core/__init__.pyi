from rllm.api.python_plugins import rLLMAdvantageEstimator as rLLMAdvantageEstimator
from rllm.api.registration import (
    RLLM_ADV_ESTIMATOR_REGISTRY as RLLM_ADV_ESTIMATOR_REGISTRY,
    get_rllm_adv_estimator as get_rllm_adv_estimator,
    register_rllm_adv_estimator as register_rllm_adv_estimator,
    register_rllm_estimator as register_rllm_estimator,
    register_rllm_grouping as register_rllm_grouping,
    register_rllm_loss as register_rllm_loss,
    register_rllm_rejection as register_rllm_rejection,
    register_rllm_sampler as register_rllm_sampler,
)
from rllm.api.rollout_registration import (
    register_rllm_environment as register_rllm_environment,
    register_rllm_reward as register_rllm_reward,
    register_rllm_workflow as register_rllm_workflow,
)
from rllm.api.train_config import build_train_config as build_train_config
from rllm.api.trainer import AgentTrainer as AgentTrainer, UnifiedTrainer as UnifiedTrainer

from .data.types import TrajectoryGroup as TrajectoryGroup
from .schema.algorithm_sections import AlgorithmConfig as AlgorithmConfig

__version__: str
