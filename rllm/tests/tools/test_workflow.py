"""Turns with tools: a scripted model, real functions, exact tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from expecting import check_values

from rllm.tools.options import ToolCallingParams
from rllm.tools.toolbox import runnable
from rllm.tools.workflow import ToolCallingWorkflow
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.types import Episode, TerminationReason
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


def test_tools_of_files_stand_before_those_of_the_environment(scripted: Any, world: Any, context: MakeContext) -> None:
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


def test_the_options_of_the_record_are_the_constructor_s(scripted: Any, world: Any, context: MakeContext) -> None:
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


def test_a_tool_that_hangs_costs_its_own_time_only(scripted: Any, world: Any, context: MakeContext) -> None:
    async def hang() -> None:
        await asyncio.sleep(3600)

    engine = scripted(['<call>{"name": "hang"}</call>$', "3$"])
    episode = run_workflow(context(engine, world([hang])), tool_timeout=0.05)
    check_values(engine.prompts[1].partition("<t>Error: ")[2], "hang", "0.05 s", "<a>")
    assert episode.is_correct
