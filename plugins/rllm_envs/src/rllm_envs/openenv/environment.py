"""`openenv`: an episode is a session of the environment's server, with an action per turn."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from openenv.core import GenericEnvClient

from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.data.tasks import LazyTasks
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError, RolloutError
from rllm_core.rollout.waits import Wait
from rllm_envs.openenv.options import OpenEnvParams
from rllm_envs.openenv.server import Server, find_server, write_observation
from rllm_envs.seeds import list_seeds

IS_FULL = "(code: CAPACITY_REACHED)"
"""End of the client's error if the server has no free session."""
PAUSE = 0.1


class OpenEnv(Environment):
    """Runs the task ``{seed}`` or ``{seed, split, index}`` in a session. The reward is the sum of the server's."""

    def __init__(self, params: OpenEnvParams) -> None:
        self._params = params
        self._server: Server | None = None
        self._client: Any = None
        self._turns = self._invalid = 0

    @classmethod
    def tasks(cls, split: Split, params: OpenEnvParams) -> Sequence[Task]:
        """Return the tasks of a split, by seed. If the options name a split of the server, also by index.

        Raises:
            ConfigError: see `find_server`, or the server has no such split.
        """
        seeds = list_seeds(split, params.seed, params.train_size, params.val_size)
        named = params.train_split if split == "train" else params.val_split
        if named is not None and seeds:
            seeds = seeds[: find_server(params).count_tasks(named)]
        # The port of a server may change before a run is resumed.
        kind = "openenv" if "://" in params.server else params.server
        ids = [f"{kind}-{seed}" for seed in seeds]

        def make(at: int) -> Task:
            chosen = {} if named is None else {"split": named, "index": at}
            return Task(id=ids[at], data={"seed": seeds[at], **chosen}, data_source=kind)

        return LazyTasks(ids, make)

    async def reset(self, task: Mapping[str, Any]) -> str:
        """Open a session, and return the rules with the first observation. Wait while the server has no free session.

        Raises:
            RolloutError: the server failed, or had no free session for too long.
        """
        params = self._params
        try:
            server = self._server = await asyncio.to_thread(find_server, params)
        except ConfigError as error:
            raise _failure(params, error) from error
        end = time.monotonic() + params.wait
        while True:
            self._client = GenericEnvClient(
                server.url, message_timeout_s=params.timeout, mode="simulation", headers=server.headers or None
            )
            try:
                result = await self._ask(self._client.reset(**params.reset, **task))
                break
            except RolloutError as error:
                if IS_FULL not in error.message or time.monotonic() > end:
                    raise
                await self._client.close()
                await asyncio.sleep(PAUSE)
        if result.done:
            raise _failure(params, "the episode ended with its reset")
        rules = params.prompt or server.form.request
        return f"{rules}\n{self._write(result.observation)}"

    async def step(self, action: str) -> Outcome:
        """Send an action. A response without a valid action costs a turn, and the server does not receive it.

        Raises:
            RolloutError: the server failed.
        """
        assert self._server is not None, "reset comes first"
        self._turns += 1
        sent = self._server.form.read(action)
        if sent is None:
            self._invalid += 1
            return Outcome(observation=f"That is not an action. {self._server.form.request}")
        result = await self._ask(self._client.step(sent))
        reward, cause = self._read_reward(result)
        if not result.done:
            return Outcome(observation=self._write(result.observation), reward=reward, reward_error=cause)
        metrics = {"turns": float(self._turns), "invalid": float(self._invalid)}
        return Outcome(reward=reward, reward_error=cause, done=True, metrics=metrics)

    async def close(self) -> None:
        """Close the session, so that the server can give it to the next episode."""
        if self._client is not None:
            await self._client.close()

    async def _ask(self, answer: Awaitable[Any]) -> Any:
        try:
            with Wait("environment server", self._params.server):
                return await answer
        except Exception as error:
            # The client raises errors of several libraries.
            raise _failure(self._params, error) from error

    def _read_reward(self, result: Any) -> tuple[float, str]:
        """Return the reward of a step, and the cause if it is missing. Servers send null for None, NaN and infinity."""
        reward, choice = result.reward, self._params.no_reward
        if isinstance(reward, int | float) and math.isfinite(reward):
            return float(reward), ""
        if reward is None and (choice == "zero" or (choice == "last" and not result.done)):
            return 0.0, ""
        remedy = "; if only the last step has one, set rllm.env.env_args.no_reward=last" if not result.done else ""
        return math.nan, f"step {self._turns} of {self._params.server!r} has reward {json.dumps(reward)}{remedy}"

    def _write(self, observation: Mapping[str, Any]) -> str:
        try:
            return write_observation(observation, self._params.observation)
        except KeyError as error:
            raise _failure(self._params, f"its observation has no field {error}") from error


def _failure(params: OpenEnvParams, cause: object) -> RolloutError:
    text = (str(cause) or type(cause).__name__).rstrip(".")
    return RolloutError(
        "environment-failed", f"Environment {params.server!r} failed: {text}.", "Look at the log of its server."
    )
