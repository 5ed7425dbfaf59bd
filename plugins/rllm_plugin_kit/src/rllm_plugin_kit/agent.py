"""The contract of agents."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from rllm_core.contracts.agent import Agent, AgentPlugin
from rllm_core.data.messages import MalformedToolCall, Message, Response, ToolCall, read_text
from rllm_plugin_kit.plugin import PluginContract

OBSERVATIONS: tuple[str | Sequence[Message], ...] = (
    "lower",
    "",
    "ünïcödé 🎲\n\x00",
    [{"role": "user", "content": "a message"}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "a part"}]}],
    [{"role": "tool", "content": "42", "tool_call_id": "call-0"}],
)
RESPONSES = (
    Response(text="an answer", content="an answer"),
    Response(text="", content="", finish_reason="length"),
    Response(text="7\n\n", content="7\n\n"),
    Response(text="<think>hm</think>yes", content="yes", reasoning="hm"),
    Response(text="<think>hm", content="", reasoning="hm", finish_reason="length"),
    Response(text="{'tool': None", content="", malformed_calls=(MalformedToolCall(text="{", problem="cut off"),)),
    Response(text="add", content="", tool_calls=(ToolCall(name="add", arguments={"a": 1, "of": [2]}, id="call-0"),)),
    Response(text="word " * 5000, content="word " * 5000, finish_reason="length"),
)
MARKS = ("FIRST-OBSERVATION", "SECOND-OBSERVATION")


class AgentContract(PluginContract[AgentPlugin[Any]]):
    """Contract of every agent. The tests give the agent many kinds of observations and responses."""

    kind = "agent"
    observations: ClassVar[Sequence[str | Sequence[Message]]] = OBSERVATIONS
    """Observations from the environment. Set your own if the agent's environment sends different observations."""
    deterministic: ClassVar[bool] = True
    """True if the same rollout always gets the same messages and actions."""

    def test_methods_are_not_async(self, params: Any) -> None:
        agent = self._make_agent(params)
        for name in ("observe", "act"):
            if inspect.iscoroutinefunction(getattr(agent, name)):
                raise self.failure(
                    f"has a coroutine function {name}, which rllm does not await",
                    f"Write `def {name}(…)` without `async`.",
                )

    def test_observations_become_json_messages(self, params: Any) -> None:
        """Chat messages are JSON, because rllm writes them to a file and renders them."""
        for observation in self.observations:
            messages = self._observe(self._make_agent(params), observation)
            if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
                raise self._no_messages(observation, messages)
            for message in messages:
                if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                    raise self._no_messages(observation, message)
                self._check_json(message, "a message")

    def test_any_response_becomes_an_action(self, params: Any) -> None:
        """Text, or an object in JSON where the environment takes those."""
        for response in RESPONSES:
            agent = self._make_agent(params)
            self._observe(agent, self.observations[0])
            action = self._act(agent, response)
            if not isinstance(action, str | Mapping):
                raise self.failure(
                    f"acts by {action!r:.80}", "Return text, or a mapping for environments with `takes_objects`."
                )
            self._check_json(action, "an action")

    def test_it_returns_only_new_messages(self, params: Any) -> None:
        agent = self._make_agent(params)
        first, second = MARKS
        self._observe(agent, first)
        self._act(agent, RESPONSES[0])
        if any(first in read_text(message) for message in self._observe(agent, second)):
            raise self.failure(
                "repeats the first observation after the second",
                "Return only new messages: the conversation keeps earlier messages.",
            )

    def test_it_does_not_change_its_arguments(self, params: Any) -> None:
        agent = self._make_agent(params)
        for observation in self.observations:
            before = copy.deepcopy(observation)
            self._observe(agent, observation)
            if observation != before:
                raise self.failure(
                    "changes the messages of the environment", "Make new ones: `[*observation, {…}]`, `{**message, …}`."
                )
        for response in RESPONSES:
            kept = copy.deepcopy(response)
            self._act(agent, response)
            if response != kept:
                raise self.failure(
                    "changes the model's response", "Copy the data before changing it, for example arguments."
                )

    def test_same_rollout_gives_same_messages(self, params: Any) -> None:
        if not self.deterministic:
            pytest.skip("`deterministic` is False")
        if self._rollouts(params, 1) != self._rollouts(params, 1):
            raise self.failure(
                "returns different messages or actions in a second, equal rollout",
                "Store a rollout's state in the instance (self), and draw no random numbers.",
            )

    def test_rollouts_do_not_share_state(self, params: Any) -> None:
        """Interleaved rollouts give the same result as separate rollouts."""
        if not self.deterministic:
            pytest.skip("`deterministic` is False")
        (separate,) = self._rollouts(params, 1)
        if any(each != separate for each in self._rollouts(params, 3)):
            raise self.failure(
                "gives different results when other rollouts run at the same time",
                "Store a rollout's state in the instance (self), never in the class or the module.",
            )

    def test_process_wide_state_is_unchanged(self, params: Any) -> None:
        self.check_process_state(lambda: self._rollouts(params, 1), "Compute, and return at once.")

    def _make_agent(self, params: Any) -> Agent:
        agent: Agent = self.make(params, called_with="the options, once per rollout")
        return agent

    def _rollouts(self, params: Any, number: int) -> list[list[Any]]:
        """Return the messages and actions of some rollouts that run interleaved."""
        agents = [self._make_agent(params) for _ in range(number)]
        done: list[list[Any]] = [[] for _ in agents]
        for index, observation in enumerate(self.observations):
            for agent, words in zip(agents, done, strict=True):
                words.append(list(self._observe(agent, observation)))
                words.append(self._act(agent, RESPONSES[index % len(RESPONSES)]))
        return done

    def _observe(self, agent: Agent, observation: Any) -> Any:
        return self._ask(agent.observe, observation, "observation")

    def _act(self, agent: Agent, response: Response) -> Any:
        return self._ask(agent.act, response, "response")

    def _ask(self, method: Any, given: Any, what: str) -> Any:
        with self.explain_errors(
            f"fails on the {what} {given!r:.160}",
            "A model can return any text. Pass an invalid action on, because the environment answers it."
            if what == "response"
            else "An observation is text or chat messages; `rllm_core.data.messages.read_text` gives their text.",
        ):
            return method(given)

    def _check_json(self, value: Any, what: str) -> None:
        try:
            same = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError) as error:
            raise self.failure(
                f"makes {what} that is not JSON: {error}", "Use text, numbers, lists and mappings."
            ) from error
        if not same:
            raise self.failure(f"makes {what} that JSON changes: {value!r:.80}", "Use lists instead of tuples.")

    def _no_messages(self, observation: object, shown: object) -> AssertionError:
        return self.failure(
            f"shows {shown!r:.80} of the observation {observation!r:.80}",
            "Return a list of chat messages such as {'role': 'user', 'content': 'lower'}.",
        )
