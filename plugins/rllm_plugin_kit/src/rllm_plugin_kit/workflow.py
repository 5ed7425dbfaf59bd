"""The contract of workflows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rllm_core.contracts.workflow import OpenedRun, WorkflowPlugin
from rllm_core.data.types import Episode
from rllm_core.errors import ConfigError, RolloutError
from rllm_core.schema.run_config import RunConfig
from rllm_plugin_kit.fake_rollouts import (
    MAX_PROMPT,
    MAX_RESPONSE,
    FakeEngine,
    Fault,
    Rollout,
    RolloutRun,
    describe_episode,
    run_rollout,
)
from rllm_plugin_kit.plugin import UNKNOWN_OPTION, PluginContract
from rllm_plugin_kit.process_state import find_changes

FAULTS: tuple[Fault, ...] = ("reset raises", "step raises", "engine raises")
HANGS: tuple[Fault, ...] = ("reset hangs", "step hangs")
SIDE_BY_SIDE = 4


class WorkflowContract(PluginContract[WorkflowPlugin[Any]]):
    """Contract of every workflow. It runs with a fake engine that answers from `responses`.

    The fake environment repeats each action. It ends after `turns` actions, raises an error, or hangs.
    """

    kind = "workflow"
    task: ClassVar[Mapping[str, Any]] = {"question": "2 + 2?", "parts": [2, 2]}
    """Data of the task."""
    responses: ClassVar[Sequence[str]] = ("1", "2", "three", "I do not know", "")
    """Responses of the model. The seed of each call selects one."""
    turns: ClassVar[int] = 1
    """Number of actions after which the environment ends."""

    def opening(self, run: OpenedRun, params: Any) -> AbstractAsyncContextManager[Any]:
        """Enter the plugin's `open`, which all rollouts share. Override it if this fake engine is not enough for it."""
        made = self.plugin.open
        return contextlib.nullcontext() if made is None else made(run, params)

    def test_rollout_returns_the_requested_episode(self, params: Any) -> None:
        episode = self._run_rollout(params).episode
        if not isinstance(episode, Episode):
            raise self.failure(f"returns {episode!r:.80}", "Return the Episode.")
        if episode.id != "task-0:3":
            raise self.failure(
                f"makes episode {episode.id!r} for rollout 'task-0:3'", "Set its id: `Episode(id=uid, …)`."
            )
        if not any(trajectory.steps for trajectory in episode.trajectories):
            raise self.failure("makes an episode without a step", "Add a step for every response to train on.")
        for trajectory in episode.trajectories:
            if not trajectory.name:
                raise self.failure("makes a trajectory without a name", "Its name is the role: `Trajectory('solver')`.")
        metrics = {"reward": [each.reward for each in episode.trajectories], **episode.metrics}
        for name, value in metrics.items():
            for number in value if isinstance(value, list) else [value]:
                if number is None or not isinstance(number, int | float) or not math.isfinite(number):
                    raise self.failure(f"gives {name} the value {number!r}", "Rewards and metrics are finite numbers.")

    def test_steps_contain_the_engine_tokens(self, params: Any) -> None:
        """A step has the sent prompt, and the sampled tokens and log-probs. No text is tokenized again."""
        result = self._run_rollout(params)
        calls = [(call.prompt, call.completion) for call in result.engine.calls]
        for trajectory in result.episode.trajectories:
            for step in trajectory.steps:
                tokens = step.response_ids.tolist()
                of_these = [
                    each
                    for prompt, each in calls
                    if list(prompt) == step.prompt_ids.tolist() and each.token_ids.tolist() == tokens
                ]
                if not of_these:
                    raise self.failure(
                        f"has a step of {trajectory.name!r} whose tokens no call of the engine had",
                        "Pass `completion.token_ids` and the sent prompt to `Trajectory.add_step`, as `Conversation` "
                        "in rllm_core.rollout.conversation does.",
                    )
                if step.logprobs is None or step.logprobs.tolist() not in [each.logprobs.tolist() for each in of_these]:
                    raise self.failure(
                        "has a step whose log-probs differ from the sampled log-probs", "Pass on `completion.logprobs`."
                    )
                if step.weight_version != of_these[0].weight_version:
                    raise self.failure(
                        f"reports weight version {step.weight_version} for a step that was sampled with "
                        f"{of_these[0].weight_version}",
                        "Pass on `weight_version=completion.weight_version`.",
                    )

    def test_same_rollout_gives_same_episode(self, params: Any) -> None:
        if self._content(params) != self._content(params):
            raise self.failure(
                "gives different results when the same rollout runs again",
                "Draw random numbers only from `context.sampling.seed`, and keep no state between rollouts.",
            )

    def test_each_rollout_has_its_own_seed(self, params: Any) -> None:
        seeds = [
            {call.sampling.seed for call in self._run_rollout(params, Rollout(seed=seed)).engine.calls}
            for seed in (1, 2)
        ]
        if seeds[0] & seeds[1]:
            raise self.failure(
                "samples with the same seed in two rollouts, so both would be equal",
                "Sample with `context.sampling`.",
            )

    def test_concurrent_rollouts_do_not_affect_each_other(self, params: Any) -> None:
        rollouts = [Rollout(uid=f"task-0:{index}", seed=index) for index in range(SIDE_BY_SIDE)]
        separate = [self._content(params, rollout) for rollout in rollouts]
        together = self._run(self._run_concurrently(params, rollouts))
        if [describe_episode(each.episode) for each in together] != separate:
            raise self.failure(
                "gives different results when other rollouts run at the same time",
                "Store a rollout's state in the instance (self), never in the class or the module.",
            )
        sessions = [{call.session for call in each.engine.calls} for each in together]
        if len(set().union(*sessions)) < sum(map(len, sessions)):
            raise self.failure(
                "uses one session name in two rollouts",
                "Make `uid` part of the name, because engines cache by session.",
            )

    def test_it_does_not_change_the_task(self, params: Any) -> None:
        task = json.loads(json.dumps(self.task))
        self._run_rollout(params, Rollout(task=task))
        if task != self.task:
            raise self.failure(
                "changes the data of its task",
                "Copy the data before changing it, because other rollouts get the same data.",
            )

    def test_length_limits_are_respected(self, params: Any) -> None:
        """If a prompt is too long, the workflow returns an episode with that reason. rllm would retry on an error."""
        for call in self._run_rollout(params, Rollout(task=dict(self.task) | {"long": "word " * 200})).engine.calls:
            if call.sampling.max_tokens > MAX_RESPONSE or len(call.prompt) > MAX_PROMPT:
                raise self.failure(
                    f"requests {call.sampling.max_tokens} tokens after a prompt of {len(call.prompt)}, where "
                    f"{MAX_RESPONSE} after {MAX_PROMPT} are allowed",
                    "Use `context.max_response_length` and `context.max_prompt_length`, as `Conversation` does.",
                )

    def test_it_reads_exactly_its_config_keys(self, params: Any) -> None:
        """The plugin's `config_keys` contains exactly the keys that the workflow reads. rllm rejects all other keys."""
        result = self._run_rollout(params)
        for key, used, what in (
            ("rllm.agent.name", result.agents, "makes the agent that is chosen by name"),
            ("rllm.reward", result.scored, "adds the score of `context.score`"),
        ):
            said = key in self.plugin.config_keys
            if said != (used > 0):
                raise self._key_failure(key, said, what)
        turns = "rllm.agent.max_steps" in self.plugin.config_keys
        if self.turns > 1 or turns:
            made = [
                len(self._run_rollout(params, Rollout(fault="never done", max_steps=most)).engine.calls)
                for most in (2, 4)
            ]
            if turns != (made[0] < made[1]):
                raise self._key_failure("rllm.agent.max_steps", turns, "ends after as many turns")

    @pytest.mark.parametrize("fault", FAULTS)
    def test_errors_leave_nothing_open(self, params: Any, fault: Fault) -> None:
        """The workflow passes the error on. The runner retries, or records the rollout as failed."""
        result = self._run_until_it_fails(params, fault)
        if result is None:
            pytest.skip("it uses no environment")
        self._check_all_is_closed(result, f"when {fault}")

    @pytest.mark.parametrize("fault", HANGS)
    def test_cancellation_ends_a_hanging_rollout(self, params: Any, fault: Fault) -> None:
        """A timeout cancels the rollout. The steps up to then stay in `episode`."""
        if not self._run_rollout(params).environments.made:
            pytest.skip("it uses no environment")

        async def cancel_when_it_hangs() -> RolloutRun:
            async with self._open(params) as (engine, resource):
                result = RolloutRun(engine=engine)
                rollout = asyncio.ensure_future(
                    run_rollout(self.load_plugin(), params, self._rollout(Rollout(fault=fault)), result, resource)
                )
                hanging = asyncio.ensure_future(result.environments.hanging.wait())
                await asyncio.wait([rollout, hanging], return_when=asyncio.FIRST_COMPLETED)
                hanging.cancel()
                rollout.cancel()
                await asyncio.wait([rollout])
                if not rollout.cancelled():
                    raise self.failure(
                        f"continues when it is cancelled while {fault}",
                        "Do not catch asyncio.CancelledError. Clean up in `finally`.",
                    )
                return result

        self._check_all_is_closed(self._run(cancel_when_it_hangs()), f"when it is cancelled while {fault}")

    def test_unknown_options_are_rejected(self, params: Any) -> None:
        try:
            self._run(self._one(params, Rollout(options={UNKNOWN_OPTION: 1})))
        except (ConfigError, TypeError):
            return
        raise self.failure(
            "takes an option that it does not have",
            "Declare its options in the constructor. `Workflow.__init__` rejects unknown options.",
        )

    def test_process_wide_state_is_unchanged(self, params: Any) -> None:
        self.load_plugin()
        results: list[RolloutRun] = []
        if different := find_changes(lambda: results.append(self._run_rollout(params))):
            raise self.failure(
                f"leaves {', '.join(different)} changed",
                "Close everything that `open` opens, and restore all other state.",
            )
        self._check_all_is_closed(results[-1], "after a rollout")

    def _rollout(self, rollout: Rollout) -> Rollout:
        return rollout.fill_in(task=self.task, turns=self.turns)

    def _run_rollout(self, params: Any, rollout: Rollout | None = None) -> RolloutRun:
        result: RolloutRun = self._run(self._one(params, rollout or Rollout()))
        return result

    async def _one(self, params: Any, rollout: Rollout) -> RolloutRun:
        (result,) = await self._run_concurrently(params, [rollout])
        return result

    async def _run_concurrently(self, params: Any, rollouts: Sequence[Rollout]) -> list[RolloutRun]:
        async with self._open(params) as (_, resource):
            each = [RolloutRun(engine=FakeEngine(self.responses, rollout.fault)) for rollout in rollouts]
            make = self.load_plugin()
            await asyncio.gather(
                *(
                    run_rollout(make, params, self._rollout(rollout), result, resource)
                    for rollout, result in zip(rollouts, each, strict=True)
                )
            )
            return each

    def _run_until_it_fails(self, params: Any, fault: Fault) -> RolloutRun | None:
        async def fail() -> RolloutRun:
            async with self._open(params) as (_, resource):
                result = RolloutRun(engine=FakeEngine(self.responses, fault))
                # If an agent runs in a separate process, its error arrives as an error of the rollout.
                with contextlib.suppress(RuntimeError, RolloutError):
                    await run_rollout(self.load_plugin(), params, self._rollout(Rollout(fault=fault)), result, resource)
                return result

        result: RolloutRun = self._run(fail())
        return result if result.environments.made or fault == "engine raises" else None

    @contextlib.asynccontextmanager
    async def _open(self, params: Any) -> Any:
        engine = FakeEngine(self.responses)
        run = OpenedRun(config=RunConfig(), engine=engine, directory=Path())
        async with self.opening(run, params) as resource:
            yield engine, resource

    def _content(self, params: Any, rollout: Rollout | None = None) -> object:
        return describe_episode(self._run_rollout(params, rollout).episode)

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        async def without_leftovers() -> Any:
            result = await coroutine
            if left := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
                raise self.failure(f"leaves {len(left)} tasks running", "Await or cancel all its tasks in `finally`.")
            return result

        try:
            return asyncio.run(without_leftovers())
        except (AssertionError, ConfigError, TypeError):
            raise
        except Exception as error:
            raise self.failure(
                f"fails in a rollout: {type(error).__name__}: {error}",
                "Correct the error, or set the `turns`, `task` and `responses` that it needs in the test.",
            ) from error

    def _check_all_is_closed(self, result: RolloutRun, when: str) -> None:
        if any(count != 1 for count in result.environments.close_counts):
            raise self.failure(
                f"closes its environments {result.environments.close_counts} times {when}",
                "Close each environment once, in `finally`.",
            )
        if result.engine.open_sessions:
            raise self.failure(f"leaves sessions open in the engine {when}", "Call `engine.end_session` in `finally`.")

    def _key_failure(self, key: str, said: bool, what: str) -> AssertionError:
        return self.failure(
            f"{'does not use' if said else 'uses'} {key}, but {'declares it' if said else 'does not declare it'}",
            f"Put the key into `config_keys` of its plugin spec if it {what}, otherwise remove it.",
        )
