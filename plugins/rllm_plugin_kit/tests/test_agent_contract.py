"""Agents that are wrong in one way each, and what the contract tells their authors."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rllm_core.contracts import Agent, AgentPlugin, NoParams
from rllm_core.data.messages import Message, Response
from rllm_plugin_kit import AgentContract

from .conftest import vary

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


class SetsAVariable(Polite):
    def act(self, response: Response) -> Any:
        os.environ["MY_AGENT"] = response.content[:5].replace("\x00", "")
        return response.content


def plugin(make: Any) -> AgentPlugin[Any]:
    return AgentPlugin(name="mine", summary="For tests.", params=NoParams, load=lambda: make)


def test_a_good_agent_has_no_complaints(complaints: Any) -> None:
    assert complaints(AgentContract, plugin(Polite)) == {}


@pytest.mark.parametrize(
    ("agent", "test", "said"),
    [
        (Asynchronous, "methods_are_not_async", "has a coroutine"),
        (vary(Polite, observe=lambda _, observation: observation), "observations_become_json_messages", "'lower'"),
        (
            vary(Polite, observe=lambda _, observation: [{"role": "user", "content": b"bytes"}]),
            "observations_become_json_messages",
            "makes a message",
        ),
        (
            vary(Polite, observe=lambda _, observation: [{"role": "user", "content": observation.strip()}]),
            "observations_become_json_messages",
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
        (SetsAVariable, "process_wide_state_is_unchanged", "leaves environment variables"),
    ],
)
def test_contract_reports_the_mistake(agent: Any, test: str, said: str, complaint: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MY_AGENT", "before")
    observations = tuple(each if isinstance(each, str) else list(each) for each in AgentContract.observations)
    assert said in complaint(AgentContract, plugin(agent), test, observations=observations)
