"""Turns with tools: a scripted model, real functions, exact tokens, and classes for TRL's `environment_factory`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.builtin.tools.toolbox import runnable
from rllm.builtin.tools.trl_environment import TrlEnvironment, TrlEnvironmentParams, check_factory
from rllm.builtin.tools.workflow import ToolCallingParams, ToolCallingWorkflow
from rllm_core.contracts.environment import Outcome
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.types import Episode, TerminationReason
from rllm_core.errors import ConfigError
from rllm_core.notices import forget_warnings

MakeContext = Callable[..., WorkflowContext]
ADD = '<call>{"name": "add", "arguments": {"a": 1, "b": 2}}</call>'


def add(a: int, b: int) -> int:
    return a + b


def run_workflow(context: WorkflowContext, **options: Any) -> Episode:
    return asyncio.run(ToolCallingWorkflow(context, **options).run({}, "t:0"))


def test_response_with_a_call_receives_its_result(scripted: Any, world: Any, context: MakeContext) -> None:
    engine, place = scripted([f"hm {ADD}$", "3$"]), world([add])
    episode = run_workflow(context(engine, place))
    assert engine.prompts == ["[add]<u>1+2?<a>", f"[add]<u>1+2?<a>hm {ADD}$<t>3<a>"]
    assert place.actions == ["3"]
    assert (episode.is_correct, episode.termination_reason) == (True, TerminationReason.ENV_DONE)
    assert episode.metrics == {"tool_calls": 1.0, "tool_calls_malformed": 0.0, "tool_calls_failed": 0.0, "answers": 1.0}
    assert [step.reward for step in episode.trajectories[0].steps] == [0.0, 1.0]


def test_only_sampled_tokens_are_trained(scripted: Any, world: Any, context: MakeContext) -> None:
    responses = [f"{ADD}{ADD}$", "<call>add(1", "so: 3$"]
    episode = run_workflow(context(scripted(responses), world([add])))
    tokens = episode.trajectories[0].tokens
    assert "".join(map(chr, tokens.ids[tokens.sampled])) == "".join(responses)
    assert tokens.prefix_breaks == 0


def test_tools_of_files_precede_tools_of_the_environment(scripted: Any, world: Any, context: MakeContext) -> None:
    def look() -> str:
        return ""

    engine = scripted(["3$"])
    run_workflow(context(engine, world([look]), resource=[runnable(add)]))
    assert engine.prompts == ["[add][look]<u>1+2?<a>"]


def test_what_goes_wrong_is_counted_and_told(scripted: Any, world: Any, context: MakeContext) -> None:
    def fail() -> None:
        raise OSError("no disk")

    responses = ['<call>{"name": "fail"}</call><call>nonsense</call>', f'<call>{{"name": "ad"}}</call>{ADD}$', "3$"]
    engine = scripted(responses)
    episode = run_workflow(context(engine, world([add, fail])))
    failed, unreadable = engine.prompts[1].split("<t>Error: ")[1:]
    check_values(failed, "fail", "OSError: no disk")
    assert unreadable
    (unknown,) = engine.prompts[2].removeprefix(engine.prompts[1]).split("<t>Error: ")[1:]
    check_values(unknown, "'ad'", "'add'", "<t>3<a>")
    assert episode.metrics["tool_calls"] == 4.0
    assert episode.metrics["tool_calls_malformed"] == 0.5
    assert episode.metrics["tool_calls_failed"] == 0.25


def test_an_episode_without_calls_has_no_shares(scripted: Any, world: Any, context: MakeContext) -> None:
    assert run_workflow(context(scripted(["3$"]), world([add]))).metrics == {"tool_calls": 0.0, "answers": 1.0}


def test_every_response_counts_as_a_step(scripted: Any, world: Any, context: MakeContext) -> None:
    engine, place = scripted([f"{ADD}$"] * 3), world([add])
    episode = run_workflow(context(engine, place, max_steps=3))
    assert episode.termination_reason is TerminationReason.MAX_TURNS_EXCEEDED
    assert (len(engine.prompts), place.actions) == (3, [])
    assert episode.metrics["tool_calls"] == 3.0


def test_tool_calling_params_are_constructor_arguments(scripted: Any, world: Any, context: MakeContext) -> None:
    options = ToolCallingParams(tools=["tools.py:add"], gamma=0.5).model_dump()
    episode = run_workflow(context(scripted([f"{ADD}$", "3$"]), world([add])), **options)
    assert [step.reward for step in episode.trajectories[0].steps] == [0.5, 1.0]


def test_an_environment_s_tools_may_be_its_methods(scripted: Any, world: Any, context: MakeContext) -> None:
    class Counting(world):  # type: ignore[misc]
        count = 0

        def tools(self, task: Any) -> Any:
            return [self.more]

        def more(self, by: int) -> int:
            self.count += by
            return self.count

    place, call = Counting(), '<call>{"name": "more", "arguments": {"by": 2}}</call>'
    run_workflow(context(scripted([f"{call}{call}$", "4$"]), place))
    assert place.count == 4


def test_no_tools_is_a_notice(scripted: Any, world: Any, context: MakeContext, capsys: Any) -> None:
    forget_warnings()
    run_workflow(context(scripted(["3$"]), world()))
    check_values(capsys.readouterr().err, "workflow tool_calling", "--tools")


def test_hanging_tool_costs_only_its_own_time(scripted: Any, world: Any, context: MakeContext) -> None:
    async def hang() -> None:
        await asyncio.sleep(3600)

    engine = scripted(['<call>{"name": "hang"}</call>$', "3$"])
    episode = run_workflow(context(engine, world([hang])), tool_timeout=0.05)
    check_values(engine.prompts[1].partition("<t>Error: ")[2], "hang", "0.05 s", "<a>")
    assert episode.is_correct


Write = Callable[[str], Path]

COUNTER = '''
class Counter:
    """Counts up to the target of the row."""

    def __init__(self):
        self.value = 0

    def reset(self, target, **row):
        self.value = 0
        self.target = target
        return f" Count to {target}."

    def add(self, amount: int) -> int:
        """Adds to the counter.

        Args:
            amount: how much
        """
        self.value += amount
        return self.value

    def get_reward(self):
        return float(self.value == self.target)

    def _hidden(self): ...
'''


def _environment(path: Path, name: str = "Counter", **options: Any) -> TrlEnvironment:
    return TrlEnvironment(TrlEnvironmentParams(factory=f"{path}:{name}", **options))


def _finish(environment: TrlEnvironment) -> Outcome:
    return asyncio.run(environment.step("done"))


def test_reset_receives_the_row_and_extends_the_prompt(tool_file: Write) -> None:
    environment = _environment(tool_file(COUNTER))

    assert environment.reset({"prompt": "Begin.", "target": 3}) == "Begin. Count to 3."
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Begin."}]
    assert environment.reset({"prompt": messages, "target": 4}) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Begin. Count to 4."},
    ]


def test_public_methods_are_tools_and_change_the_reward(tool_file: Write) -> None:
    path = tool_file(COUNTER)
    environment, other = _environment(path), _environment(path)
    for each in (environment, other):
        each.reset({"prompt": "Begin.", "target": 3})
    (add,) = environment.tools({})

    assert _finish(environment) == Outcome(reward=0.0, done=True)
    assert add(amount=3) == 3
    assert _finish(environment) == Outcome(reward=1.0, done=True)
    assert _finish(other).reward == 0.0


@pytest.mark.parametrize(
    ("method", "reward"),
    [
        ("async def get_reward(self): return 0.5", 0.5),
        ("def get_reward(self): return None", 0.0),
        ("def other(self): return 1.0", 0.0),
    ],
)
def test_reward_may_be_awaited_or_from_reward_functions(tool_file: Write, method: str, reward: float) -> None:
    path = tool_file(f"class World:\n    def reset(self, **row): ...\n    {method}\n")

    assert _finish(_environment(path, "World")).reward == reward
    path = tool_file("class World:\n    def reset(self, **row): ...\n    def get_reward(self): raise OSError('gone')\n")
    with pytest.raises(OSError, match="gone"):
        _finish(_environment(path, "World"))


@pytest.mark.parametrize(
    ("source", "code", "value"),
    [
        ("class World: ...\n", "environment-options-rejected", "reset"),
        ("class World:\n    def __init__(self, port): ...\n", "environment-options-rejected", "port"),
        ("class Wrld: ...\n", "unknown-function", "Wrld"),
        ("class World:\n    def reset(self): ...\n    def use(self, what): ...\n", "bad-tool", "use"),
    ],
)
def test_an_unusable_class_is_refused(tool_file: Write, source: str, code: str, value: str) -> None:
    path = tool_file(source)

    with expect_error(ConfigError, code, value):
        check_factory(TrlEnvironmentParams(factory=f"{path}:World"))
