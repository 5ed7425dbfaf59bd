"""Options of the environment `minigrid_text`. Checking a configuration imports this module, so it must import quickly."""

from pydantic import Field
from rllm_core.contracts import Params


class MinigridTextParams(Params):
    room: str = Field(default="MiniGrid-Empty-5x5-v0", min_length=1, description="Id of a room of minigrid.")
    max_steps: int = Field(default=12, gt=0, description="Number of actions after which an episode ends.")
    seeds: int = Field(default=16, gt=0, le=10_000, description="Number of training tasks.")
    val_seeds: int = Field(default=4, gt=0, description="Number of validation tasks.")
