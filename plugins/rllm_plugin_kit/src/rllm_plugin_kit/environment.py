"""The contract of environments."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import pytest

from rllm_core.contracts.environment import Environment, EnvironmentPlugin, Outcome, Split
from rllm_core.data.types import Task
from rllm_core.rollout.calls import call
from rllm_plugin_kit.plugin import PluginContract
from rllm_plugin_kit.task_checks import check_ids, check_json, check_same_every_time, read_some_tasks

SPLITS: tuple[Split, ...] = ("train", "val")
JUNK = ("", " \n", "7", "-1e9", "yes", "{'tool': None}", "\x00\ufffd", "ünïcödé 🎲", "word " * 5000)
"""Possible responses of an untrained model."""
TASKS_TRIED = 3


class EnvironmentContract(PluginContract[EnvironmentPlugin[Any]]):
    """Contract of every environment. The tests run it with meaningless actions and with `actions`."""

    kind = "environment"
    dataset: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Task data, for an environment without tasks, which uses the tasks from a dataset."""
    actions: ClassVar[Sequence[str]] = ()
    """Meaningful actions. One separate episode takes them in this order."""
    max_steps: ClassVar[int | None] = 50
    """Maximum number of steps in an episode. None if the environment relies on ``rllm.agent.max_steps``."""
    deterministic: ClassVar[bool] = True
    """True if the same actions at the same task always get the same observations."""

    def test_tasks_are_the_same_every_time(self, params: Any) -> None:
        for split in SPLITS:
            if split == "train" and not self._tasks(params, split):
                raise self.failure("has no task to train on", "Return at least one from `tasks('train', params)`.")
            check_same_every_time(partial(self._tasks, params, split), self.failure)

    def test_tasks_have_different_ids(self, params: Any) -> None:
        for split in SPLITS:
            check_ids(self._tasks(params, split), self.failure)

    def test_task_data_is_json(self, params: Any) -> None:
        for split in SPLITS:
            check_json(self._tasks(params, split), self.failure)

    def test_any_action_gets_an_outcome(self, params: Any) -> None:
        for task in self._some_tasks(params):
            self._run_episode(params, task, JUNK * 3)
            for words in JUNK:
                self._run_episode(params, task, [words])
            self._run_episode(params, task, self.actions)

    def test_episode_ends_within_max_steps(self, params: Any) -> None:
        if self.max_steps is None:
            pytest.skip("`max_steps` is None")
        for task in self._some_tasks(params):
            for words in (*JUNK[:4], *self.actions):
                if not self._run_episode(params, task, [words] * self.max_steps)[-1].done:
                    raise self.failure(
                        f"has not ended after {self.max_steps} steps with the action {words!r}",
                        "Count the steps and end the episode (done=True), or set `max_steps` in the test. Use None if "
                        "rllm.agent.max_steps ends the episode.",
                    )

    def test_same_actions_give_same_outcomes(self, params: Any) -> None:
        if not self.deterministic:
            pytest.skip("`deterministic` is False")
        for task in self._some_tasks(params):
            for words in (JUNK, self.actions):
                if self._run_episode(params, task, words) != self._run_episode(params, task, words):
                    raise self.failure(
                        f"answers the same actions at task {task.id!r} differently in a second episode",
                        "Seed random numbers by the task, and keep nothing between episodes. Or set "
                        "`deterministic = False` in the test.",
                    )

    def test_episodes_do_not_share_state(self, params: Any) -> None:
        """Two interleaved episodes give the same results as separate episodes."""
        if not self.deterministic:
            pytest.skip("`deterministic` is False")
        tasks = self._some_tasks(params)
        one, other = tasks[0], tasks[-1]
        said = [*self.actions, *JUNK]
        separate = [self._run_episode(params, task, said) for task in (one, other)]
        if asyncio.run(self._interleave(params, (one, other), said)) != separate:
            raise self.failure(
                "gives different results when a second episode runs at the same time",
                "Store an episode's state in the instance (self), never in the class or the module.",
            )

    def test_tools_are_functions(self, params: Any) -> None:
        """Tools may also be pairs of a schema and a function. A workflow can run nothing else."""
        for task in self._some_tasks(params):
            offered = asyncio.run(self._tools(params, task))
            if not isinstance(offered, Sequence) or not all(map(_is_tool, offered)):
                raise self.failure(
                    f"offers the tools {offered!r:.80}",
                    "Return typed functions from `tools`, or pairs of a schema and a function.",
                )

    def test_it_does_not_change_tasks(self, params: Any) -> None:
        for task in self._some_tasks(params):
            before = json.dumps(task.data)
            self._run_episode(params, task, [*self.actions, *JUNK])
            if json.dumps(task.data) != before:
                raise self.failure(
                    f"changes the data of task {task.id!r} during an episode",
                    "Copy the data before changing it, because other rollouts at the task get the same data.",
                )

    def test_close_at_any_time_works(self, params: Any) -> None:
        """Closing works even before the first observation, because a rollout that fails to start is also closed."""
        asyncio.run(self._close(self._make_environment(params)))
        for task in self._some_tasks(params):
            self._run_episode(params, task, [])
            self._run_episode(params, task, JUNK[:1])

    def _tasks(self, params: Any, split: Split) -> list[Task]:
        if self.dataset:
            return [Task(id=f"{split}-{number}", data=dict(row)) for number, row in enumerate(self.dataset)]
        environment: Any = self.load_plugin()
        with self.explain_errors(
            f"cannot list its {split} tasks",
            "Write `tasks(cls, split, params)` as a class method for both splits. Return [] if a split has no tasks.",
        ):
            tasks = environment.tasks(split, params)
        return read_some_tasks(tasks, self.failure)

    def _some_tasks(self, params: Any) -> Sequence[Task]:
        tasks = self._tasks(params, "train")
        return [*tasks[:TASKS_TRIED], *tasks[-1:]]

    def _make_environment(self, params: Any) -> Environment:
        with self.explain_errors("cannot be made", "Its constructor is called with the options, once per episode."):
            environment: Environment = self.load_plugin()(params)
        return environment

    def _run_episode(self, params: Any, task: Task, said: Sequence[str]) -> list[Outcome]:
        """Return the outcomes of one episode, until it ends or no action is left."""
        return asyncio.run(self._interleave(params, [task], said))[0]

    async def _interleave(self, params: Any, tasks: Sequence[Task], said: Sequence[str]) -> list[list[Outcome]]:
        environments = [self._make_environment(params) for _ in tasks]
        outcomes: list[list[Outcome]] = [
            [Outcome(observation=await self._reset(*pair))] for pair in zip(environments, tasks, strict=True)
        ]
        for words in said:
            for environment, so_far in zip(environments, outcomes, strict=True):
                if not so_far[-1].done:
                    so_far.append(await self._step(environment, words))
        for environment in environments:
            await self._close(environment)
        return outcomes

    async def _tools(self, params: Any, task: Task) -> Any:
        environment = self._make_environment(params)
        await self._reset(environment, task)
        try:
            return await self._ask(environment.tools, task.data, what=f"tools failed on task {task.id!r}")
        finally:
            await self._close(environment)

    async def _reset(self, environment: Environment, task: Task) -> Any:
        observation = await self._ask(environment.reset, task.data, what=f"reset failed on task {task.id!r}")
        self._check_observation(observation, "reset")
        return observation

    async def _step(self, environment: Environment, words: str) -> Outcome:
        outcome = await self._ask(environment.step, words, what=f"step failed on the words {words!r:.40}")
        if not isinstance(outcome, Outcome):
            raise self.failure(
                f"returned {outcome!r:.80} from step", "Return a rllm_core.contracts.environment.Outcome."
            )
        if not outcome.done:
            self._check_observation(outcome.observation, "step")
        for name, value in {"reward": outcome.reward, **outcome.metrics}.items():
            if not isinstance(value, Real) or not math.isfinite(value):
                raise self.failure(
                    f"gave {name} the value {value!r}",
                    "Return finite rewards and metrics. Use 0 for no reward.",
                )
        return outcome

    async def _close(self, environment: Environment) -> None:
        await self._ask(environment.close, what="close failed")

    async def _ask(self, method: Any, *arguments: Any, what: str) -> Any:
        with self.explain_errors(
            f"cannot continue: {what}",
            "Return an observation for an invalid action instead of raising an error, and make `close` work in any "
            "state.",
        ):
            return await call(method, *arguments, blocking=self.plugin.blocking)

    def _check_observation(self, observation: object, method: str) -> None:
        if isinstance(observation, str):
            return
        if isinstance(observation, Sequence) and all(map(_is_message, observation)):
            return
        raise self.failure(
            f"shows {observation!r:.80} after {method}",
            "Return text, or chat messages such as {'role': 'user', 'content': 'lower'}.",
        )


def _is_tool(offered: object) -> bool:
    if isinstance(offered, tuple) and len(offered) == 2:
        schema, function = offered
        return isinstance(schema, Mapping) and "name" in schema.get("function", ()) and callable(function)
    return callable(offered)


def _is_message(message: object) -> bool:
    return isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))
