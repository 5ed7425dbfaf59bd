"""Between environment and model: what becomes a message, and what becomes an action."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rllm_core.contracts import Agent, Outcome, WorkflowContext
from rllm_core.data.messages import Message, Response
from rllm_core.data.types import Episode
from rllm_core.errors import PluginError, RolloutError
from rllm_core.rollout.options import MathAgentParams
from rllm_core.rollout.workflows import MathAgent, MultiTurnWorkflow

from .conftest import FunctionEnvironment

MakeContext = Callable[..., WorkflowContext]
SYSTEM = {"role": "system", "content": "be brief"}
HI, BYE = {"role": "user", "content": "hi"}, {"role": "user", "content": "bye"}


def _run_episode(context: WorkflowContext) -> Episode:
    return asyncio.run(MultiTurnWorkflow(context).run({}, "t:0"))


@pytest.mark.parametrize(
    ("prompt", "observation", "messages"),
    [
        (None, "hi", [HI]),
        (None, [HI, BYE], [HI, BYE]),
        (None, [], []),
        ("be brief", "hi", [SYSTEM, HI]),
        ("be brief", [HI], [SYSTEM, HI]),
    ],
)
def test_math_agent_makes_messages_of_observations(prompt: Any, observation: Any, messages: list[Any]) -> None:
    agent = MathAgent(MathAgentParams(system_prompt=prompt))
    assert list(agent.observe(observation)) == messages
    assert list(agent.observe("bye")) == [BYE]  # the system prompt comes once


def test_math_agent_reads_content_and_not_reasoning() -> None:
    response = Response(text="<think>so:</think>\n7 ", content="7", reasoning="so:")
    assert MathAgent(MathAgentParams()).act(response) == "7"


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


def test_observations_and_responses_pass_through_the_agent(engine: Any, context: MakeContext) -> None:
    responses = iter(["well\n1$", "hm\n2$"] * 2)
    engine.answer = lambda prompt, sampling: next(responses)
    agents, actions = [], []

    def step(action: str) -> Outcome:
        actions.append(action)
        return Outcome(observation="more", done=action == "2", reward=1.0)

    def make_agent() -> LastLine:
        agents.append(LastLine())
        return agents[-1]

    made = context(make_environment=lambda: FunctionEnvironment(step=step), make_agent=make_agent)
    for _ in range(2):  # every rollout has its own agent
        episode = _run_episode(made)
    assert actions == ["1", "2"] * 2
    assert [agent.received for agent in agents] == [["go", "more"]] * 2  # without the last outcome's observation
    assert [agent.said for agent in agents] == [["well\n1", "hm\n2"]] * 2
    assert engine.prompts == ["<u>1:go<a>", "<u>1:go<a>well\n1$<u>2:more<a>"] * 2
    assert [step.text for step in episode.trajectories[0].steps] == ["well\n1", "hm\n2"]


@pytest.mark.parametrize(
    ("method", "result", "kind", "message"),
    [
        ("observe", None, RolloutError, r"test_agents.py, line \d+\) returned None\."),
        ("observe", "hi", RolloutError, r"returned 'hi'\."),
        ("observe", HI, RolloutError, r"Return a list of messages"),
        ("act", None, PluginError, "None"),
        ("act", {"move": "ok"}, PluginError, r"returned \{'move': 'ok'\}, and FunctionEnvironment takes text\."),
    ],
)
def test_an_agent_that_returns_something_else_is_reported(
    context: MakeContext, method: str, result: Any, kind: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LastLine, method, lambda self, given: result)
    world = FunctionEnvironment()
    with pytest.raises(kind, match=message):
        _run_episode(context(make_environment=lambda: world, make_agent=LastLine))
    assert world.closed == 1


def test_agents_may_act_by_objects(context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LastLine, "act", lambda self, response: {"move": response.content})
    actions: list[Any] = []

    def step(action: Any) -> Outcome:
        actions.append(action)
        return Outcome(done=True)

    board: Any = type("Board", (FunctionEnvironment,), {"takes_objects": True})
    _run_episode(context(make_environment=lambda: board(step=step), make_agent=LastLine))
    assert actions == [{"move": "ok"}]


def test_failing_agent_leaves_no_open_environment(context: MakeContext) -> None:
    made = []

    def make_environment() -> Any:
        made.append(FunctionEnvironment())
        return made[-1]

    def fail() -> Agent:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        _run_episode(context(make_environment=make_environment, make_agent=fail))
    assert [world.closed for world in made] == [1] * len(made)
