"""What contracts tell authors of agents, workflows, environments and renderers with one mistake each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rllm_core.contracts import Agent, Environment, NoParams, Outcome, RendererSetup, Split, Workflow
from rllm_core.data.messages import Message, Response
from rllm_core.data.types import Episode, Step, Task, TerminationReason, Trajectory
from rllm_core.rollout.conversation import Conversation, PromptTooLongError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_plugin_kit import EnvironmentContract, RendererContract, WorkflowContract

from .conftest import PROCESS, later, make_plugin, vary

NUMBERS = itertools.count()


class Polite(Agent):
    """Asks once, and acts by what is said or by the first call of a tool."""

    def __init__(self, params: NoParams) -> None:
        self.asked = False

    def observe(self, observation: Any) -> Sequence[Message]:
        said = [{"role": "user", "content": observation}] if isinstance(observation, str) else observation
        opening = [] if self.asked else [{"role": "system", "content": "please"}]
        self.asked = True
        return [*opening, *said]

    def act(self, response: Response) -> Any:
        if response.tool_calls:
            return {"tool": response.tool_calls[0].name, "arguments": dict(response.tool_calls[0].arguments)}
        return response.content


class Asynchronous(Polite):
    async def act(self, response: Response) -> Any:
        return response.content


class SaysEverythingAgain(Polite):
    def __init__(self, params: NoParams) -> None:
        self.history: list[Message] = []

    def observe(self, observation: Any) -> Any:
        self.history += [{"role": "user", "content": observation}] if isinstance(observation, str) else observation
        return list(self.history)


class AddsToTheMessages(Polite):
    def observe(self, observation: Any) -> Any:
        messages = super().observe(observation)
        if not isinstance(observation, str):
            observation.append({"role": "user", "content": "and now?"})
        return messages


class ChangesArguments(Polite):
    def act(self, response: Response) -> Any:
        for call in response.tool_calls:
            call.arguments["seen"] = True  # type: ignore[index]
        return response.content


class RemembersOthers(Polite):
    seen: ClassVar[list[object]] = []

    def observe(self, observation: Any) -> Any:
        if not self.asked:
            self.seen.clear()
        self.seen.append(observation)
        return super().observe(observation)

    def act(self, response: Response) -> Any:
        return f"{len(self.seen)}"


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

    assert complaints(WorkflowContract, make_plugin("workflow", NeedsItsServer, open=server)) == {}


RETURNS = "rollout_returns_the_requested_episode"


TOKENS = "steps_contain_the_engine_tokens"


@pytest.mark.parametrize("key", ["rllm.agent.name", "rllm.agent.max_steps"])
def test_a_declared_but_unused_key_is_reported(key: str, complaint: Any) -> None:
    record = make_plugin("workflow", OneAnswer, config_keys=frozenset({key}))
    said = complaint(WorkflowContract, record, "it_reads_exactly_its_config_keys")
    assert f" {key}, " in said


class Echo(Environment):
    """Repeats what is said, three times."""

    def __init__(self, params: NoParams) -> None:
        self.steps = 0

    @classmethod
    def tasks(cls, split: Split, params: NoParams) -> Sequence[Task]:
        return [Task(id=f"{split}-{number}", data={"words": ["say", str(number)]}) for number in range(5)]

    def reset(self, task: Mapping[str, Any]) -> Any:
        self.words = list(task["words"])
        return " ".join(self.words)

    def step(self, action: str) -> Any:
        self.steps += 1
        return Outcome(observation=action, reward=float(action == self.words[-1]), done=self.steps == 3)


class InMessages(Echo):
    async def reset(self, task: Mapping[str, Any]) -> Any:
        return [{"role": "system", "content": "Echo."}, {"role": "user", "content": super().reset(task)}]

    async def step(self, action: str) -> Any:
        return super().step(action)


NeverEnds = vary(Echo, step=lambda _, action: Outcome(observation="again"))


NAN = Outcome(reward=float("nan"), done=True)


def of_tasks(make: Callable[[], Any]) -> type[Echo]:
    """Return an environment of these tasks."""
    return vary(Echo, tasks=classmethod(lambda cls, split, params: make()))


class SharesSteps(Echo):
    seen: ClassVar[list[str]] = []

    def reset(self, task: Mapping[str, Any]) -> Any:
        self.seen.clear()
        return super().reset(task)

    def step(self, action: str) -> Any:
        self.seen.append(action)
        return Outcome(observation=str(len(self.seen)), done=len(self.seen) > 4)


class RemembersOtherEpisodes(Echo):
    episodes: ClassVar[list[int]] = []

    def reset(self, task: Mapping[str, Any]) -> Any:
        self.episodes.append(1)
        return f"{super().reset(task)}, game {len(self.episodes)}"


class NoValidation(Echo):
    @classmethod
    def tasks(cls, split: Split, params: NoParams) -> Sequence[Task]:
        return {"train": super().tasks(split, params)}[str(split)]


class TakesWordsAway(Echo):
    def reset(self, task: Mapping[str, Any]) -> Any:
        self.words = task["words"]
        return self.words.pop()


TASKS = "tasks_are_the_same_every_time"


@pytest.mark.parametrize(
    ("environment", "attributes"),
    [
        (InMessages, {"max_steps": 3}),
        (NeverEnds, {"max_steps": None}),
        (RemembersOtherEpisodes, {"deterministic": False}),
    ],
)
def test_declared_exceptions_are_accepted(complaints: Any, environment: type[Echo], attributes: dict[str, Any]) -> None:
    assert complaints(EnvironmentContract, make_plugin("environment", environment), **attributes) == {}


SCHEMA = {"type": "function", "function": {"name": "double"}}


class WithTools(Echo):
    def tools(self, task: Mapping[str, Any]) -> Any:
        return [self.last, (SCHEMA, lambda number: 2 * number)]

    def last(self) -> str:
        return str(self.words[-1])


def test_tools_are_functions_and_pairs(complaints: Any) -> None:
    assert complaints(EnvironmentContract, make_plugin("environment", WithTools)) == {}


@pytest.mark.parametrize("tools", [[SCHEMA], None])
def test_invalid_tools_are_reported(complaint: Any, tools: Any) -> None:
    offers = vary(Echo, tools=lambda self, task: tools)
    assert "`tools`" in complaint(EnvironmentContract, make_plugin("environment", offers), "tools_are_functions")


def _no_tasks() -> Any:
    raise ValueError("it has no tasks")


def test_environment_without_tasks_gets_the_tests_tasks(complaints: Any, complaint: Any) -> None:
    made = make_plugin("environment", of_tasks(_no_tasks))
    assert complaints(EnvironmentContract, made, dataset=[{"words": ["say", "it"]}]) == {}
    told = complaint(EnvironmentContract, made, "episode_ends_within_max_steps", dataset=[{"question": "2+2?"}])
    assert "reset failed" in told


class Template(TemplateRenderer):
    """By the template of the model."""

    @classmethod
    def make(cls, setup: RendererSetup, params: NoParams) -> Template:
        return cls(setup.tokenizer, setup.stop_ids, setup.template_options)


class BridgesOneByOne(Template):
    def bridge(self, prompt_ids: Any, response_ids: Any, messages: Any, tools: Any = ()) -> Any:
        bridged = super().bridge(prompt_ids, response_ids, messages, tools)
        return np.array([*bridged, min(self.stop_ids)], np.int32)


def bridging(bridge: Callable[[Template, Any], Any]) -> type[Template]:
    """Return a renderer that changes the response before it continues the conversation."""

    def run(self: Template, prompt_ids: Any, response_ids: Any, messages: Any, tools: Any = ()) -> Any:
        return Template.bridge(self, prompt_ids, bridge(self, response_ids), messages, tools)

    return vary(Template, bridge=run)


def parsing(change: Callable[[Response], Any]) -> type[Template]:
    """Return a renderer that changes the parsed response."""
    return vary(Template, parse=lambda self, prompt, said, tools=(): change(Template.parse(self, prompt, said)))


NeverBridges = vary(Template, bridge=lambda *_: None)


class NoStopInResponses(Template):
    def response_ids(self, text: str) -> Any:
        ids = super().response_ids(text)
        return ids[:-1] if len(ids) > 1 else ids


class RaisesOnJunk(Template):
    def parse(self, prompt_ids: Any, response_ids: Any, tools: Any = ()) -> Response:
        assert response_ids[-1] in self.stop_ids
        return super().parse(prompt_ids, response_ids)


class Counts(Template):
    asked = 0

    def prompt(self, messages: Any, tools: Any = ()) -> Any:
        Counts.asked += 1
        return super().prompt([*messages, {"role": "user", "content": "x" * Counts.asked}], tools)


class GivesItsCache(Template):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.known: dict[str, Any] = {}

    def prompt(self, messages: Any, tools: Any = ()) -> Any:
        return self.known.setdefault(repr((messages, tools)), super().prompt(messages, tools).copy())


class StripsMessages(Template):
    def prompt(self, messages: Any, tools: Any = ()) -> Any:
        for message in messages:
            message["content"] = message["content"].upper()
        return super().prompt(messages, tools)


MISTAKES: dict[str, list[tuple[Any, str, str]]] = {
    "agent": [
        (Asynchronous, "methods_are_not_async", "has a coroutine"),
        (vary(Polite, observe=lambda _, observation: observation), "observations_become_json_messages", "'lower'"),
        (
            vary(Polite, observe=lambda _, observation: [{"role": "user", "content": b"bytes"}]),
            "observations_become",
            "makes a message",
        ),
        (
            vary(Polite, observe=lambda _, observation: [{"role": "user", "content": observation.strip()}]),
            "observations_become",
            "'role'",
        ),
        (vary(Polite, act=lambda _, said: str(int(said.content))), "any_response_becomes_an_action", "fails on the"),
        (vary(Polite, act=lambda _, said: said.content or None), "any_response_becomes_an_action", "acts by None"),
        (vary(Polite, act=lambda _, said: {"path": Path("x")}), "any_response_becomes_an_action", "makes an action"),
        (SaysEverythingAgain, "it_returns_only_new_messages", "repeats the first"),
        (AddsToTheMessages, "it_does_not_change_its_arguments", "changes the messages"),
        (ChangesArguments, "it_does_not_change_its_arguments", "the model's response"),
        (vary(Polite, act=lambda _, said: f"{next(NUMBERS)}"), "same_rollout_gives_same_messages", "in a second"),
        (RemembersOthers, "rollouts_do_not_share_state", "gives different results"),
        (
            vary(Polite, act=lambda _, said: os.environ.update(MINE="acted") or said.content),
            PROCESS,
            "leaves environment variables",
        ),
    ],
    "workflow": [
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
            "same_rollout",
            "gives different results",
        ),
        (
            with_context(lambda context: replace(context, sampling=replace(context.sampling, seed=0))),
            "each_rollout",
            "samples with the",
        ),
        (OneSession, "concurrent_rollouts_do_not_affect_each_other", "uses one session"),
        (LastOneCounts, "concurrent_rollouts_do_not_affect_each_other", "gives different results"),
        (doing(lambda self, task, uid: task["parts"].clear()), "it_does_not_change_the_task", "changes the data"),
        (RaisesOnLongPrompts, "length_limits_are_respected", "PromptTooLongError"),
        (
            with_context(lambda context: replace(context, max_response_length=100, max_prompt_length=10**6)),
            "length_limits",
            "requests 100 tokens",
        ),
        (doing(lambda self, *_: self.context.make_agent()), "it_reads_exactly_its_config_keys", "rllm.agent.name"),
        (LeavesTheEnvironment, "errors_leave_nothing_open", "[0]"),
        (LeavesTheEnvironment, "cancellation_ends_a_hanging_rollout", "times when it"),
        (
            with_context(lambda context: replace(context, engine=NoEnd(context.engine))),
            "errors_leave",
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
            "unknown_options",
            "takes an option",
        ),
        (doing(lambda self, task, uid: os.environ.update(MINE=uid)), PROCESS, "leaves environment variables"),
    ],
    "environment": [
        (vary(Echo, step=lambda _, action: Outcome(reward=int(action))), "any_action_gets_an_outcome", "ValueError"),
        (NeverEnds, "episode_ends_within_max_steps", "has not ended"),
        (SharesSteps, "episodes_do_not_share_state", "episode's state"),
        (RemembersOtherEpisodes, "same_actions_give_same_outcomes", "`deterministic = False`"),
        (of_tasks(lambda: [Task(id="a", data={"words": [str(random.random())]})]), TASKS, "Make tasks a"),
        (of_tasks(lambda: [Task(id="task", data={"words": ["a"]})] * 2), "tasks_have_different_ids", "'task'"),
        (of_tasks(list), TASKS, "has no task"),
        (NoValidation, TASKS, "`tasks(cls, split, params)`"),
        (of_tasks(lambda: [{"id": "task"}]), TASKS, "rllm_core.data.types.Task"),
        (of_tasks(lambda: [Task(id="task", data={"words": ("a",)})]), "task_data_is_json", "Use lists instead"),
        (of_tasks(lambda: [Task(id="task", data={"words": ["a"], "x": {1}})]), "task_data_is_json", "Task.data"),
        (vary(Echo, step=lambda *_: NAN), "any_action_gets_an_outcome", "gave reward the"),
        (vary(Echo, reset=lambda *_: None), "any_action_gets_an_outcome", "shows None after"),
        (vary(Echo, step=lambda *_: ("", 1.0, True)), "any_action_gets_an_outcome", "contracts.environment.Outcome"),
        (TakesWordsAway, "it_does_not_change_tasks", "'train-0'"),
        (vary(Echo, close=lambda self: self.words.clear()), "close_at_any_time_works", "AttributeError"),
    ],
    "renderer": [
        (vary(Template, stop_ids=property(lambda self: frozenset(), lambda *_: None)), "stop_tokens", "has the stop"),
        (
            vary(Template, prompt=lambda self, *given: Template.prompt(self, *given).tolist()),
            "tokens_are_int32",
            "from prompt",
        ),
        (bridging(lambda self, said: self.response_ids(self.text(said))), "bridge_keeps_every_token", "does not begin"),
        (bridging(lambda self, said: [*said, min(self.stop_ids)]), "bridge_matches", "continues after"),
        (BridgesOneByOne, "bridge_matches_the_whole_conversation", "continues after"),
        (
            vary(
                Template,
                prompt=lambda self, messages, tools=(): self.encode(
                    self.tokenizer.apply_chat_template([*messages], tokenize=False), add_special_tokens=False
                ),
            ),
            "observations_end_no_turn",
            "'<end>'",
        ),
        (NoStopInResponses, "response_text_survives_a_round_trip", "does not end"),
        (vary(Template, text=lambda self, ids: Template.text(self, ids) + "<end>"), "response_text", "'7<end>'"),
        (parsing(lambda response: response.text), "any_tokens_can_be_parsed", "as '7'"),
        (RaisesOnJunk, "any_tokens_can_be_parsed", "AssertionError"),
        (parsing(lambda response: replace(response, text=response.text[:3])), "any_tokens", "returns the text"),
        (Counts, "results_depend_only_on_the_arguments", "renders the same"),
        (GivesItsCache, "results_depend_only_on_the_arguments", "gives out tokens"),
        (StripsMessages, "it_does_not_change_messages", "changes the messages"),
        (
            vary(Template, prompt=lambda self, messages, tools=(): Template.prompt(self, messages)),
            "tools_are_rendered",
            "drops tools from",
        ),
        (
            parsing(lambda response: os.environ.update(MINE="parsed") or response),
            PROCESS,
            "leaves environment variables",
        ),
        (lambda setup, params: 1 / 0, "stop_tokens_exist", "ZeroDivisionError"),
    ],
}


@pytest.mark.parametrize("renderer", [Template, NeverBridges])
def test_a_good_renderer_has_no_complaints(renderer: type[Template], complaints: Any) -> None:
    assert complaints(RendererContract, make_plugin("renderer", renderer)) == {}


@pytest.mark.parametrize(
    ("kind", "made", "test", "said"), [(kind, *row) for kind, rows in MISTAKES.items() for row in rows]
)
def test_contract_reports_the_mistake(kind: str, made: Any, test: str, said: str, reported: Any) -> None:
    assert said in reported(kind, made, test)
