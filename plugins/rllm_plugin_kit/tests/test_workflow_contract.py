"""Workflows that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from rllm_core.contracts import NoParams, Workflow, WorkflowPlugin
from rllm_core.data.types import Episode, Step, TerminationReason, Trajectory
from rllm_core.rollout.conversation import Conversation, PromptTooLongError
from rllm_plugin_kit import WorkflowContract

from .conftest import later, vary


class OneAnswer(Workflow):
    """Asks the environment, answers once, and counts letters for a second trajectory."""

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        self.episode = Episode(id=uid)
        environment = self.context.make_environment()  # type: ignore[misc]
        trajectory = Trajectory("solver", uid=f"{uid}/solver", reward=0.0)
        conversation = Conversation(self.context, trajectory, session=f"{uid}/solver")
        try:
            conversation.add_observation(await environment.reset(task))  # type: ignore[misc]
            step = await conversation.generate()
            outcome = await environment.step(step.text)  # type: ignore[misc]
            trajectory.reward = outcome.reward
            self.episode.trajectories.append(self.finished(trajectory))
        except PromptTooLongError:
            self.episode.termination_reason = TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
        finally:
            environment.close()
            await conversation.close()
        return self.episode

    def finished(self, trajectory: Trajectory) -> Trajectory:
        return trajectory


class TokenizesAgain(OneAnswer):
    def finished(self, trajectory: Trajectory) -> Trajectory:
        (step,) = trajectory.steps
        ids = self.context.engine.renderer.response_ids(step.text + " ")
        return Trajectory("solver", [Step(step.prompt_ids, ids)], reward=0.0)


def finished(change: Callable[[Trajectory], Trajectory]) -> type[OneAnswer]:
    """Return a workflow that changes its trajectory at the end."""
    return vary(OneAnswer, finished=lambda self, trajectory: change(trajectory))


def doing(act: Callable[[OneAnswer, dict[str, Any], str], object]) -> type[OneAnswer]:
    """Return a workflow that does this before each rollout."""

    async def run(self: OneAnswer, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        act(self, task, uid)
        return await OneAnswer.run(self, task, uid)

    return vary(OneAnswer, run=run)


def with_context(change: Callable[[Any], Any]) -> type[OneAnswer]:
    """Return a workflow that changes its context."""
    return vary(OneAnswer, __init__=lambda self, context, **other: OneAnswer.__init__(self, change(context), **other))


NUMBERS = itertools.count()


def of_step(*names: str) -> type[OneAnswer]:
    """Return a workflow whose step has only these fields."""
    return finished(
        lambda made: Trajectory("solver", [Step(*(getattr(made.steps[0], name) for name in names))], reward=0.0)
    )


class OneSession(OneAnswer):
    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        episode = await super().run(task, "one")
        episode.id = uid
        return episode


class LastOneCounts(OneAnswer):
    latest: ClassVar[list[str]] = []

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        self.latest[:] = [uid]
        episode = await super().run(task, uid)
        episode.is_correct = self.latest == [uid]
        return episode


class RaisesOnLongPrompts(OneAnswer):
    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        episode = await super().run(task, uid)
        if not episode.trajectories:
            raise PromptTooLongError
        return episode


class LeavesTheEnvironment(OneAnswer):
    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        make = self.context.make_environment
        assert make is not None

        def without_close() -> Any:
            environment = make()
            close, environment.close = environment.close, lambda: None  # type: ignore[method-assign]
            self.close = close
            return environment

        self.context = replace(self.context, make_environment=without_close)
        episode = await super().run(task, uid)
        self.close()
        return episode


class NoEnd:
    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def end_session(self, session: str) -> None:
        pass


class HidesTheEnd(OneAnswer):
    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        try:
            return await super().run(task, uid)
        except asyncio.CancelledError:
            return Episode(id=uid)


def plugin(make: Any, **fields: Any) -> WorkflowPlugin[Any]:
    return WorkflowPlugin(name="mine", summary="For tests.", params=NoParams, load=lambda: make, **fields)


def test_a_good_workflow_has_no_complaints(complaints: Any) -> None:
    assert complaints(WorkflowContract, plugin(OneAnswer)) == {}


def test_run_resources_are_available_in_every_rollout(complaints: Any) -> None:
    class NeedsItsServer(OneAnswer):
        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
            assert self.context.resource == ["open"]
            return await super().run(task, uid)

    @contextlib.asynccontextmanager
    async def server(run: Any, params: Any) -> Any:
        opened = ["open"]
        yield opened
        opened.clear()

    assert complaints(WorkflowContract, plugin(NeedsItsServer, open=server)) == {}


RETURNS = "rollout_returns_the_requested_episode"
TOKENS = "steps_contain_the_engine_tokens"


@pytest.mark.parametrize(
    ("workflow", "test", "said"),
    [
        (vary(OneAnswer, run=later(lambda *_: None)), RETURNS, "returns None"),
        (vary(OneAnswer, run=lambda self, task, uid: OneAnswer.run(self, task, "mine")), RETURNS, "episode 'mine'"),
        (finished(lambda made: Trajectory("solver", reward=1.0)), RETURNS, "makes an episode"),
        (finished(lambda made: Trajectory("", made.steps, 0.0)), RETURNS, "makes a trajectory"),
        (finished(lambda made: Trajectory("solver", made.steps)), RETURNS, "gives reward the"),
        (TokenizesAgain, TOKENS, "whose tokens no"),
        (of_step("prompt_ids", "response_ids"), TOKENS, "whose log-probs differ"),
        (of_step("prompt_ids", "response_ids", "logprobs"), TOKENS, "reports weight version"),
        (
            finished(lambda made: Trajectory("solver", made.steps, float(next(NUMBERS)))),
            "same_rollout_gives_same_episode",
            "gives different results",
        ),
        (
            with_context(lambda context: replace(context, sampling=replace(context.sampling, seed=0))),
            "each_rollout_has_its_own_seed",
            "samples with the",
        ),
        (OneSession, "concurrent_rollouts_do_not_affect_each_other", "uses one session"),
        (LastOneCounts, "concurrent_rollouts_do_not_affect_each_other", "gives different results"),
        (doing(lambda self, task, uid: task["parts"].clear()), "it_does_not_change_the_task", "changes the data"),
        (RaisesOnLongPrompts, "length_limits_are_respected", "PromptTooLongError"),
        (
            with_context(lambda context: replace(context, max_response_length=100, max_prompt_length=10**6)),
            "length_limits_are_respected",
            "requests 100 tokens",
        ),
        (doing(lambda self, *_: self.context.make_agent()), "it_reads_exactly_its_config_keys", "rllm.agent.name"),
        (LeavesTheEnvironment, "errors_leave_nothing_open", "[0]"),
        (LeavesTheEnvironment, "cancellation_ends_a_hanging_rollout", "times when it"),
        (
            with_context(lambda context: replace(context, engine=NoEnd(context.engine))),
            "errors_leave_nothing_open",
            "leaves sessions open",
        ),
        (HidesTheEnd, "cancellation_ends_a_hanging_rollout", "continues when"),
        (
            doing(lambda self, *_: setattr(self, "waiting", asyncio.ensure_future(asyncio.Event().wait()))),
            RETURNS,
            "leaves 1 tasks running",
        ),
        (
            vary(OneAnswer, __init__=lambda self, context, **unknown: OneAnswer.__init__(self, context)),
            "unknown_options_are_rejected",
            "takes an option",
        ),
        (
            doing(lambda self, task, uid: os.environ.update(MY_WORKFLOW=uid)),
            "process_wide_state_is_unchanged",
            "leaves environment variables",
        ),
    ],
)
def test_contract_reports_the_mistake(workflow: Any, test: str, said: str, complaint: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MY_WORKFLOW", "before")
    task = {"question": "2 + 2?", "parts": [2, 2]}
    assert said in complaint(WorkflowContract, plugin(workflow), test, task=task)


@pytest.mark.parametrize("key", ["rllm.agent.name", "rllm.agent.max_steps"])
def test_a_declared_but_unused_key_is_reported(key: str, complaint: Any) -> None:
    record = plugin(OneAnswer, config_keys=frozenset({key}))
    said = complaint(WorkflowContract, record, "it_reads_exactly_its_config_keys")
    assert f" {key}, " in said
