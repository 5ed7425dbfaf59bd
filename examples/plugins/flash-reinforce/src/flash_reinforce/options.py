"""Options of the estimator `flash_reinforce`. Checking a configuration imports this module, so it must import quickly."""

from pydantic import Field
from rllm_core.contracts import Params


class FlashReinforceParams(Params):
    max_kl: float = Field(default=0.01, gt=0, description="Largest mean binary KL of a trained trajectory, in nats.")
