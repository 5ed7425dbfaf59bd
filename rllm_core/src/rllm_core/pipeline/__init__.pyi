from .batch_checks import check_sampling_logprobs as check_sampling_logprobs
from .graph import BUILT_IN as BUILT_IN, GIVEN as GIVEN, order_stages as order_stages
from .metrics import episode_metrics as episode_metrics, find_reward as find_reward
from .pipeline import Pipeline as Pipeline
from .transform_stages import Reject as Reject, describe_misplaced_group as describe_misplaced_group
