"""Options of the reward `novelty_reward`. Checking a configuration imports this module, so it must import quickly."""

from pydantic import Field
from rllm_core.contracts import Params


class NoveltyRewardParams(Params):
    ignore_case: bool = Field(default=True, description="Ignore the difference between upper and lower case.")
