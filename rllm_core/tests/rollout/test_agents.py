"""Between environment and model: what becomes a message, and what becomes an action."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from expecting import expect_error

from rllm_core.contracts.agent import Agent
from rllm_core.contracts.environment import Outcome
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.messages import Message, Response
from rllm_core.data.types import Episode
from rllm_core.errors import PluginError
from rllm_core.rollout.agents import MathAgent
from rllm_core.rollout.options import MathAgentParams
from rllm_core.rollout.workflows import MultiTurnWorkflow

from .conftest import FunctionEnvironment

MakeContext = Callable[..., WorkflowContext]
SYSTEM = {"role": "system", "content": "be brief"}
HI, BYE = {"role": "user", "content": "hi"}, {"role": "user", "content": "bye"}


def _run_episode(context: WorkflowContext) -> Episode:
    return asyncio.run(MultiTurnWorkflow(context).run({}, "t:0"))


def test_math_agent_makes_text_the_user_s_and_passes_messages_on() -> None:
    agent = MathAgent(MathAgentParams())
    assert list(agent.observe("hi")) == [HI]
    assert list(agent.observe([HI, BYE])) == [HI, BYE]
    assert list(agent.observe([])) == []


def test_math_agent_reads_content_and_not_reasoning() -> None:
    response = Response(text="<think>so:</think>\n7 ", content="7", reasoning="so:")
    assert MathAgent(MathAgentParams()).act(response) == "7"


@pytest.mark.parametrize("observation", ["hi", [HI]])
def test_a_system_prompt_comes_before_the_first_observation_only(observation: Any) -> None:
    agent = MathAgent(MathAgentParams(system_prompt="be brief"))
    assert list(agent.observe(observation)) == [SYSTEM, HI]
    assert list(agent.observe("bye")) == [BYE]


class LastLine(Agent):
    """An agent that numbers its observations. Its action is the last line."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.said: list[str] = []

    def observe(self, observation: str | Sequence[Message]) -> Sequence[Message]:
        self.received.append(observation)
        return [{"role": "user", "content": f"{len(self.received)}:{observation}"}]

    def act(self, response: Response) -> str:
        self.said.append(response.text)
        return response.text.rpartition("\n")[2]


def test_every_observation_goes_through_the_agent_and_every_response(engine: Any, context: MakeContext) -> None:
    responses = iter(["well\n1$", "hm\n2$"])
    engine.answer = lambda prompt, sampling: next(responses)
    agent, actions = LastLine(), []

    def step(action: str) -> Outcome:
        actions.append(action)
        return Outcome(observation="more", done=action == "2", reward=1.0)

    episode = _run_episode(context(make_environment=lambda: FunctionEnvironment(step=step), make_agent=lambda: agent))
    assert actions == ["1", "2"]
    assert agent.received == ["go", "more"]  # the agent does not receive the last outcome's observation
    assert agent.said == ["well\n1", "hm\n2"]
    assert engine.prompts == ["<u>1:go<a>", "<u>1:go<a>well\n1$<u>2:more<a>"]
    assert [step.text for step in episode.trajectories[0].steps] == ["well\n1", "hm\n2"]


def test_every_rollout_has_its_own_agent(context: MakeContext) -> None:
    made: list[LastLine] = []

    def make_agent() -> LastLine:
        made.append(LastLine())
        return made[-1]

    for _ in range(2):
        _run_episode(context(make_environment=FunctionEnvironment, make_agent=make_agent))
    assert [agent.received for agent in made] == [["go"], ["go"]]


@pytest.mark.parametrize("messages", [None, "hi", HI])
def test_an_agent_that_observes_no_messages_is_told_so(
    context: MakeContext, messages: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LastLine, "observe", lambda self, observation: messages)
    world = FunctionEnvironment()
    with pytest.raises(TypeError) as caught:
        _run_episode(context(make_environment=lambda: world, make_agent=LastLine))
    assert str(caught.value) == f"observe() of LastLine returned {messages!r}, not chat messages"
    assert world.closed == 1


def test_an_agent_that_acts_by_no_text_is_told_so(context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LastLine, "act", lambda self, response: None)
    world = FunctionEnvironment()
    with expect_error(PluginError, "bad-workflow-result"):
        _run_episode(context(make_environment=lambda: world, make_agent=LastLine))
    assert world.closed == 1


def test_an_agent_acts_by_an_object_where_its_environment_takes_objects(
    context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LastLine, "act", lambda self, response: {"move": response.content})
    actions: list[Any] = []

    def step(action: Any) -> Outcome:
        actions.append(action)
        return Outcome(done=True)

    def run_rollout(world: type[Any]) -> None:
        _run_episode(context(make_environment=lambda: world(step=step), make_agent=LastLine))

    with pytest.raises(PluginError, match=r"returned \{'move': 'ok'\}; FunctionEnvironment takes text\."):
        run_rollout(FunctionEnvironment)
    run_rollout(type("Board", (FunctionEnvironment,), {"takes_objects": True}))
    assert actions == [{"move": "ok"}]


def test_an_agent_that_cannot_be_made_leaves_no_environment_behind(context: MakeContext) -> None:
    made = []

    def make_environment() -> Any:
        made.append(FunctionEnvironment())
        return made[-1]

    def fail() -> Agent:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        _run_episode(context(make_environment=make_environment, make_agent=fail))
    assert [world.closed for world in made] == [1] * len(made)
