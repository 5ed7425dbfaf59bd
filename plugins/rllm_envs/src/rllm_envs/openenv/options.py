"""Options of the environment `openenv`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rllm_core.contracts.params import Params
from rllm_envs.seeds import LARGEST_SPLIT, SEEDS


class OpenEnvParams(Params):
    """Options of ``openenv``: the server, its actions and observations, and the tasks."""

    server: str = Field(min_length=1, pattern=r"^(https?://.+|[\w.]+:[a-zA-Z_]\w*)$")
    """Address of the environment's server, such as http://127.0.0.1:8000. Or its application as MODULE:NAME, such as
    echo_env.server.app:app, which rllm serves in a process on this machine."""
    prompt: str | None = Field(None, min_length=1)
    """Rules, before the first observation. The default describes the action."""
    observation: str | None = None
    """Field of the observation that the model reads. By default, the only field if it is text, or all fields as JSON.
    """
    action: str | None = None
    """Field of the action that gets the response: text, or the last number of the response. By default, the only field.
    An action with several fields is a JSON object in the response."""
    reset: dict[str, Any] = Field(default_factory=dict)
    """Arguments of each reset, such as {difficulty: easy}, in addition to the seed."""
    train_split: str | None = None
    """Split of the server's task API for training. Each reset then gets `split` and `index`."""
    val_split: str | None = None
    """Split of the server's task API for validation."""
    no_reward: Literal["missing", "last", "zero"] = "missing"
    """Reward of a step if the server sends null, because the reward is None, NaN or infinite. missing: the rollout has
    no reward. last: 0, but missing in the last step. zero: 0. Use zero if rllm.reward scores the rollouts."""
    token_variable: str | None = None
    """Environment variable with a token for the server, which is sent as `Authorization: Bearer`."""
    timeout: float = Field(60.0, gt=0)
    """Maximum number of seconds for one reset or step."""
    wait: float = Field(600.0, ge=0)
    """Maximum number of seconds to wait for a session, if the server has no free one."""
    train_size: int = Field(1000, gt=0, le=LARGEST_SPLIT)
    """Maximum number of training tasks."""
    val_size: int = Field(64, ge=0, le=LARGEST_SPLIT)
    """Maximum number of validation tasks."""
    seed: int = Field(0, ge=0, lt=SEEDS)
    """Seed of the first task. Each further one has the next seed."""
