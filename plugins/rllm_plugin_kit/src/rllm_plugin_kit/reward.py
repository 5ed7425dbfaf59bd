"""The contract of rewards."""

from __future__ import annotations

import asyncio
import copy
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import pytest

from rllm_core.contracts.reward import Reward, RewardPlugin, Rollout, Score
from rllm_core.data.messages import MalformedToolCall, Response, ToolCall
from rllm_core.rollout.calls import call
from rllm_plugin_kit.plugin import PluginContract

RESPONSES = (
    Response(text="42", content="42"),
    Response(text="", content="", finish_reason="length"),
    Response(text="<think>hm</think>The answer is 7.", content="The answer is 7.", reasoning="hm"),
    Response(text="<think>hm", content="", reasoning="hm", finish_reason="length"),
    Response(text="\\boxed{", content="\\boxed{"),
    Response(text="ünïcödé 🎲\x00\ufffd", content="ünïcödé 🎲\x00\ufffd"),
    Response(text="1e999 -0 nan", content="1e999 -0 nan"),
    Response(text="{'tool': None", content="", malformed_calls=(MalformedToolCall(text="{", problem="cut off"),)),
    Response(text="add", content="", tool_calls=(ToolCall(name="add", arguments={"a": [1]}, id="call-0"),)),
    Response(text="word " * 5000, content="word " * 5000, finish_reason="length"),
)
"""Possible responses of an untrained model and of a trained model."""
REWARD_FIELDS = frozenset(Score.__dataclass_fields__)


class RewardContract(PluginContract[RewardPlugin[Any]]):
    """Contract of every reward. The tests score rollouts at `data`, with many kinds of responses."""

    kind = "reward"
    data: ClassVar[Mapping[str, Any]] = {"question": "6 * 7?", "answer": "42"}
    """Data of a task. It must have the fields in the plugin's `needs`."""
    state: ClassVar[Any] = None
    """The environment's final state, for a reward that reads `Rollout.state`."""
    right: ClassVar[Sequence[str]] = ()
    """Responses that must get a higher reward than each response in `wrong`."""
    wrong: ClassVar[Sequence[str]] = ()
    """Responses that must get a lower reward than each response in `right`."""
    deterministic: ClassVar[bool] = True
    """True if the same rollout always gets the same reward."""

    def test_data_contains_the_declared_needs(self) -> None:
        if lacking := sorted(self.plugin.needs - self.data.keys()):
            raise self.failure(
                f"needs {', '.join(lacking)} of a task's data", "Add these fields to `data` in the test."
            )

    def test_only_declared_needs_are_read(self, params: Any) -> None:
        """A rollout needs only the fields in `needs` to get a score, and gets no score without them."""
        reward = self._make_reward(params)
        data = {name: self.data[name] for name in self.plugin.needs if name in self.data}
        self._score(reward, self._rollout(RESPONSES[0], data=data), "where the task's data has nothing but its needs")

    def test_any_response_is_scored(self, params: Any) -> None:
        reward = self._make_reward(params)
        for response in RESPONSES:
            score = self._score(reward, self._rollout(response), f"on the response {response.text!r:.60}")
            self._check(score, response)

    def test_right_responses_get_higher_rewards(self, params: Any) -> None:
        if not self.right or not self.wrong:
            pytest.skip("`right` or `wrong` is empty")
        reward = self._make_reward(params)
        right, wrong = (
            {words: self._value(reward, words) for words in responses} for responses in (self.right, self.wrong)
        )
        best, worst = max(wrong, key=lambda each: wrong[each]), min(right, key=lambda each: right[each])
        if right[worst] <= wrong[best]:
            raise self.failure(
                f"gives {right[worst]:g} to the right {worst!r}, and {wrong[best]:g} to the wrong {best!r}",
                "Give right responses a higher reward than wrong ones.",
            )

    def test_same_rollout_gets_same_reward(self, params: Any) -> None:
        if not self.deterministic:
            pytest.skip("`deterministic` is False")
        # The second object scores in reverse order, so that a count of calls in the object shows.
        first = self._score_all(params, RESPONSES)
        if first != self._score_all(params, RESPONSES[::-1])[::-1]:
            raise self.failure(
                "scores the same rollout differently a second time",
                "Compute the reward only from the rollout, or set `deterministic = False` in the test.",
            )

    def test_concurrent_scores_do_not_affect_each_other(self, params: Any) -> None:
        """One reward object scores all rollouts of a run, many of them concurrently."""
        if not self.deterministic:
            pytest.skip("`deterministic` is False")
        reward = self._make_reward(params)
        rollouts = [self._rollout(response) for response in RESPONSES]

        async def at_once() -> list[Any]:
            return await asyncio.gather(*(self._call(reward, rollout, "at once") for rollout in rollouts))

        together = [_as_words(score) for score in asyncio.run(at_once())]
        if together != self._score_all(params, RESPONSES):
            raise self.failure(
                "scores rollouts differently when others are scored at the same time",
                "Do not store a rollout's data in the instance (self).",
            )

    def test_group_results_follow_the_rollouts(self, params: Any) -> None:
        """A reward with scope ``group`` returns one result for each rollout, in any order of the rollouts."""
        if not self._compares(params):
            pytest.skip("`scope` is 'rollout'")
        rollouts = [self._rollout(response) for response in RESPONSES]
        for order in (rollouts, rollouts[::-1]):
            reward = self.make(params, called_with="the options, once per run")
            scores = asyncio.run(self._call_with_all(reward, order))
            for rollout, score in zip(order, scores, strict=True):
                self._check(score, rollout.response)
            by_response = {
                rollout.response.text: _as_words(score) for rollout, score in zip(order, scores, strict=True)
            }
            if order is rollouts:
                first = by_response
            elif self.deterministic and by_response != first:
                raise self.failure(
                    "gives rollouts other rewards if they arrive in a different order",
                    "Compute the reward of a rollout from the rollouts, not from their order.",
                )

    def test_it_does_not_change_the_rollout(self, params: Any) -> None:
        reward = self._make_reward(params)
        for response in RESPONSES:
            rollout = self._rollout(response)
            before = copy.deepcopy(rollout)
            self._score(reward, rollout, "")
            if rollout != before:
                raise self.failure(
                    "changes the rollout that it scores",
                    "Copy the data before changing it, because other rewards read it too.",
                )

    def test_process_wide_state_is_unchanged(self, params: Any) -> None:
        self.load_plugin()
        reward = self._make_reward(params)
        asyncio.run(asyncio.sleep(0))

        def score_all() -> None:
            for response in RESPONSES:
                self._score(reward, self._rollout(response), "")

        self.check_process_state(score_all, "Put back what it changes.")

    def _make_reward(self, params: Any) -> Reward:
        reward: Any = self.make(params, called_with="the options, once per run")
        if not callable(reward):
            raise self.failure(f"makes {reward!r:.80}", "Return a callable that takes a rollout.")
        return partial(self._call_with_one, reward) if self._compares(params) else reward

    def _compares(self, params: Any) -> bool:
        scope = self.plugin.scope
        return (scope(params) if callable(scope) else scope) == "group"

    async def _call_with_one(self, reward: Any, rollout: Rollout) -> Any:
        (score,) = await self._call_with_all(reward, [rollout])
        return score

    async def _call_with_all(self, reward: Any, rollouts: Sequence[Rollout]) -> list[Any]:
        with self.explain_errors(f"fails on {len(rollouts)} rollouts", "Return one result for each rollout."):
            scores = [*await call(reward, rollouts, blocking=self.plugin.blocking)]
        if len(scores) != len(rollouts):
            raise self.failure(
                f"returns {len(scores)} results for {len(rollouts)} rollouts", "Return one result for each rollout."
            )
        return scores

    def _rollout(self, response: Response, data: Mapping[str, Any] | None = None) -> Rollout:
        asked = {"role": "user", "content": str(self.data.get("question", "?"))}
        return Rollout(
            data=json.loads(json.dumps(dict(self.data if data is None else data))),
            messages=[asked, response.message],
            response=response,
            response_tokens=len(response.text),
            state=copy.deepcopy(self.state),
        )

    def _score(self, reward: Reward, rollout: Rollout, case: str) -> Any:
        return asyncio.run(self._call(reward, rollout, case))

    async def _call(self, reward: Reward, rollout: Rollout, case: str) -> Any:
        with self.explain_errors(
            f"fails {case}",
            "Return 0 for a response that cannot be parsed, or `Score(value=None, feedback=why)` for a missing reward. "
            "List the fields of a task's data that it reads in `needs`.",
        ):
            return await call(reward, rollout, blocking=self.plugin.blocking)

    def _check(self, score: Any, response: Response) -> None:
        fields = dict(score) if isinstance(score, Mapping) else {"value": score}
        if isinstance(score, Score):
            fields = {name: getattr(score, name) for name in REWARD_FIELDS}
        if strange := sorted(fields.keys() - REWARD_FIELDS):
            known = ", ".join(sorted(REWARD_FIELDS))
            raise self.failure(f"returns {', '.join(strange)}, which a score does not have", f"Use only {known}.")
        numbers = {**fields.get("components", {}), **fields.get("metrics", {})}
        if fields["value"] is not None or not fields.get("feedback"):
            numbers["value"] = fields["value"]
        for name, number in numbers.items():
            if not isinstance(number, Real) or not math.isfinite(number):
                raise self.failure(
                    f"gives {name} the value {number!r} on the response {response.text!r:.60}",
                    "Return finite rewards, components and metrics. For a missing reward, set `feedback`.",
                )
        if fields.get("correct") not in (None, True, False):
            raise self.failure(f"sets `correct` to {fields['correct']!r}", "Set True, False, or None for unknown.")

    def _score_all(self, params: Any, responses: Sequence[Response]) -> list[str]:
        reward = self._make_reward(params)
        return [_as_words(self._score(reward, self._rollout(response), "")) for response in responses]

    def _value(self, reward: Reward, words: str) -> float:
        score = self._score(reward, self._rollout(Response(text=words, content=words)), f"on {words!r:.60}")
        value = score.value if isinstance(score, Score) else score["value"] if isinstance(score, Mapping) else score
        if value is None:
            raise self.failure(f"has no reward for {words!r:.60}", "Return 0 for a wrong response.")
        return float(value)


def _as_words(score: Any) -> str:
    return repr(dict(score) if isinstance(score, Mapping) else score)
