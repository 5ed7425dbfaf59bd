"""Workflows, environments and rewards that a program registers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from expecting import expect_error

from rllm.planning.scoring import Scorer, WeightedReward
from rllm_core import register_rllm_environment, register_rllm_reward, register_rllm_workflow
from rllm_core.contracts import Environment, Outcome, Params, Rollout, Score, Workflow
from rllm_core.data.messages import Response
from rllm_core.data.types import Episode, Task
from rllm_core.errors import PluginError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry

pytestmark = pytest.mark.usefixtures("nothing_stays_registered")

ROLLOUT = Rollout(data={"answer": "2"}, messages=[], response=Response(text="2", content="2"), response_tokens=1)


class World(Environment):
    """One word."""

    def __init__(self, params: Any) -> None:
        self.params = params

    @classmethod
    def tasks(cls, split: str, params: Any) -> list[Task]:
        return [Task(id="a")]

    def reset(self, task: Any) -> str:
        return "say"

    def step(self, action: Any) -> Outcome:
        return Outcome(done=True)


class Talk(Workflow):
    """Says nothing."""

    def __init__(self, context: Any, words: int = 1) -> None:
        super().__init__(context)
        self.words = words

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        return Episode(id=uid)


class Strength(Params):
    strength: float = 2.0


def scored(choice: Any) -> Score:
    """What a reward says of `ROLLOUT`, chosen as in a configuration."""
    chosen = choose(Registry.load(), "reward", choice, "rllm.reward[0]")
    return asyncio.run(Scorer([WeightedReward(chosen=chosen, weight=1.0)])(ROLLOUT))


def test_an_environment_is_made_with_its_options() -> None:
    register_rllm_environment("mine", params=Strength, blocking=False, defaults={"rllm.rollout.n": 2})(World)
    chosen = choose(Registry.load(), "environment", {"name": "mine", "strength": 3.0}, "rllm.env.name")
    assert chosen.qualified_name == "in-process/mine"
    assert chosen.registered.load()(chosen.params).params.strength == 3.0
    assert (chosen.plugin.summary, chosen.plugin.blocking) == ("One word.", False)
    assert chosen.plugin.defaults == {"rllm.rollout.n": 2}


def test_workflow_may_have_an_options_model() -> None:
    class Words(Params):
        words: int = 1

    for name, options in (("plain", {}), ("mine", {"params": Words})):
        register_rllm_workflow(name, **options)(Talk)
        chosen = choose(Registry.load(), "workflow", {"name": name, "words": 3}, "rllm.workflow.name")
        assert chosen.registered.load()(None, **chosen.params.model_dump()).words == 3
    with pytest.raises(Exception, match="wods"):
        choose(Registry.load(), "workflow", {"name": "mine", "wods": 3}, "rllm.workflow.name")


def test_a_reward_is_a_function_of_the_rollout() -> None:
    @register_rllm_reward("mine")
    def mine(rollout: Rollout) -> float:
        return float(rollout.response.content == rollout.data["answer"])

    assert scored("mine").value == 1.0
    assert mine(ROLLOUT) == 1.0


def test_a_reward_with_options_is_given_them() -> None:
    @register_rllm_reward("plain", params=Strength)
    def plain(rollout: Rollout, params: Strength) -> float:
        return params.strength

    @register_rllm_reward("waiting", params=Strength)
    async def waiting(rollout: Rollout, params: Strength) -> float:
        await asyncio.sleep(0)
        return params.strength

    @register_rllm_reward("made", params=Strength)
    class Made:
        def __init__(self, params: Strength) -> None:
            self.strength = params.strength

        def __call__(self, rollout: Rollout) -> float:
            return self.strength

    assert scored("made").value == 2.0
    assert scored({"name": "plain", "strength": 0.5}).value == 0.5
    assert scored("waiting").value == 2.0


def test_reward_spec_has_needs_and_timeout() -> None:
    @register_rllm_reward("mine", needs={"solution"}, timeout=0.5)
    def mine(rollout: Rollout) -> float:
        return 1.0

    assert "'solution'" in scored("mine").feedback
    assert choose(Registry.load(), "reward", "mine", "rllm.reward[0]").plugin.timeout == 0.5


@pytest.mark.parametrize(
    ("decorator", "arguments", "thing", "error"),
    [
        (register_rllm_environment, ["mine"], Talk, ("bad-plugin-spec",)),
        (register_rllm_environment, ["mine"], Environment, ("bad-plugin-spec",)),
        (register_rllm_workflow, ["mine"], World, ("bad-plugin-spec",)),
        (register_rllm_reward, ["mine"], lambda a, b: 1.0, ("bad-reward-signature",)),
        (partial(register_rllm_reward, params=Strength), ["mine"], lambda a: 1.0, ("bad-reward-signature", "params)")),
        (register_rllm_reward, [], lambda a: 1.0, ("bad-plugin-spec", "register_rllm_reward", '"NAME"')),
        (register_rllm_workflow, [], Talk, ("bad-plugin-spec", "register_rllm_workflow", '"NAME"')),
        (register_rllm_environment, [], World, ("bad-plugin-spec", "register_rllm_environment", '"NAME"')),
    ],
)
def test_what_cannot_be_registered_is_said_at_once(
    decorator: Any, arguments: list[str], thing: Any, error: tuple[str, ...]
) -> None:
    with expect_error(PluginError, *error):
        decorator(*arguments)(thing) if arguments else decorator(thing)
