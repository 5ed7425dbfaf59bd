from .graph import BUILT_IN as BUILT_IN, GIVEN as GIVEN, order_stages as order_stages
from .known_logprobs import check_sampling_logprobs as check_sampling_logprobs
from .metrics import episode_metrics as episode_metrics, find_reward as find_reward
from .pipeline import Pipeline as Pipeline
from .reject_stage import Reject as Reject
from .result_check import misplaced as misplaced
