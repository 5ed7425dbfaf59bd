"""One rollout of a task with a scripted model and a scripted environment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import virtual_time
from expecting import expect_error
from pydantic import ValidationError
from tool_tokenizer import ToolTokenizer

from rllm_core.contracts import Outcome, SamplingParams, Workflow, WorkflowContext
from rllm_core.data.types import Episode, TerminationReason
from rllm_core.data.version_spans import VersionSpan
from rllm_core.errors import ConfigError, RolloutError
from rllm_core.rollout import workflows
from rllm_core.rollout.options import AgentWorkflowParams
from rllm_core.rollout.runner import PerRolloutEngine
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.rollout.workflows import MultiTurnWorkflow, SingleTurnWorkflow

from .conftest import FunctionEnvironment

MakeContext = Callable[..., WorkflowContext]
BOTH = pytest.mark.parametrize("kind", [SingleTurnWorkflow, MultiTurnWorkflow])


def _run_episode(kind: type[Workflow], context: WorkflowContext, task: dict[str, Any] | None = None) -> Episode:
    return asyncio.run(kind(context).run(task or {}, "t:3"))


def _outcomes(*outcomes: Outcome) -> Callable[[str], Outcome]:
    remaining = iter(outcomes)
    return lambda action: next(remaining)


@pytest.fixture
def play(context: MakeContext) -> Callable[..., tuple[Episode, FunctionEnvironment]]:
    """Run an episode with these outcomes of steps, or this environment; keywords change the context."""

    def run(kind: type[Workflow], *outcomes: Outcome, world: Any = None, **changes: Any) -> Any:
        made = world or FunctionEnvironment(**({"step": _outcomes(*outcomes)} if outcomes else {}))
        return _run_episode(kind, context(make_environment=lambda: made, **changes)), made

    return run


def test_one_prompt_one_answer(engine: Any, context: MakeContext) -> None:
    seen = []

    def step(action: str) -> Outcome:
        seen.append(action)
        return Outcome(done=True, reward=0.75, correct=True, metrics={"length": 2})

    world = FunctionEnvironment(step=step, reset=lambda task: f"{task['a']} + 1")
    engine.weight_version, engine.version_spans = 6, (VersionSpan(7, 1), VersionSpan(6, 2))
    episode = _run_episode(SingleTurnWorkflow, context(make_environment=lambda: world), {"a": 3})
    (trajectory,) = episode.trajectories
    assert engine.prompts == ["<u>3 + 1<a>"]
    assert seen == ["ok"]
    assert (episode.id, episode.is_correct, episode.metrics) == ("t:3", True, {"length": 2.0})
    assert episode.termination_reason is TerminationReason.ENV_DONE
    assert (trajectory.name, trajectory.uid, trajectory.reward) == ("agent", "t:3/agent", 0.75)
    assert [(step.reward, step.text, step.weight_version) for step in trajectory.steps] == [(0.75, "ok", 6)]
    assert trajectory.steps[0].version_spans == engine.version_spans
    assert "".join(map(chr, trajectory.tokens.ids)) == "<u>3 + 1<a>ok$"
    assert trajectory.tokens.sampled.tolist() == [False] * 11 + [True] * 3


def test_turns_extend_one_another_with_exact_tokens(engine: Any, context: MakeContext) -> None:
    responses = iter(["one$", "two", "three$"])
    engine.answer = lambda prompt, sampling: next(responses)
    world = FunctionEnvironment(step=_outcomes(Outcome(observation="a"), Outcome(observation="b"), Outcome(done=True)))
    episode = _run_episode(MultiTurnWorkflow, context(make_environment=lambda: world, max_response_length=6))
    assert engine.prompts == ["<u>go<a>", "<u>go<a>one$<u>a<a>", "<u>go<a>one$<u>a<a>two$<u>b<a>"]
    (trajectory,) = episode.trajectories
    assert "".join(map(chr, trajectory.tokens.ids)) == "<u>go<a>one$<u>a<a>two$<u>b<a>three$"
    assert "".join(chr(t) for t in trajectory.tokens.ids[trajectory.tokens.sampled]) == "one$twothree$"
    assert trajectory.tokens.prefix_breaks == 0
    assert len(set(engine.sessions)) == 1
    assert engine.ended == engine.sessions[:1]


def test_observations_may_be_messages(engine: Any, play: Any) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    play(SingleTurnWorkflow, world=FunctionEnvironment(reset=lambda task: messages))
    assert engine.prompts == ["<s>s<u>u<a>"]


def test_rewards_of_the_turns_add_up(play: Any) -> None:
    episode, _ = play(
        MultiTurnWorkflow,
        Outcome(reward=0.5, reward_components={"right": 1.0, "number": np.float32(0.5)}),
        Outcome(reward=-0.25),
        Outcome(reward=1, done=True, reward_components={"right": 0.5}),
    )
    (trajectory,) = episode.trajectories
    assert trajectory.reward == 1.25
    assert [step.reward for step in trajectory.steps] == [0.5, -0.25, 1.0]
    assert trajectory.info["reward_components"] == {"right": 1.5, "number": 0.5}


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([Outcome(reward=1.0, done=True)], True),
        ([Outcome(reward=0.0, done=True)], False),
        ([Outcome(reward=-1.0, done=True)], False),
        ([Outcome(reward=float("nan"), done=True)], False),
        ([Outcome(reward=1.0, done=True, correct=False)], False),
        ([Outcome(reward=0.0, done=True, correct=True)], True),
        # The whole reward decides and not the last turn's.
        ([Outcome(reward=1.0), Outcome(reward=0.0, done=True)], True),
    ],
)
def test_unknown_correctness_means_a_reward_above_zero(play: Any, outcomes: list[Outcome], expected: bool) -> None:
    episode, _ = play(MultiTurnWorkflow, *outcomes)
    assert episode.is_correct is expected
    assert episode.trajectories[0].reward == pytest.approx(sum(outcome.reward for outcome in outcomes), nan_ok=True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.0, 1.0, 3.0]),
        ({"gamma": 0.5}, [0.5 * (1.0 + 0.5 * 3.0), 1.0 + 0.5 * 3.0, 3.0]),
        ({"reward_bonus_coeff": 0.5}, [0.0, 1.0 + 0.5 * 1.0, 3.0 + 0.5 * 2.0]),
        ({"gamma": 1.0, "reward_bonus_coeff": 0.5}, [5.5, 5.5, 4.0]),
    ],
)
def test_shaped_rewards_of_steps_leave_the_trajectory_s(context: Any, options: Any, expected: list[float]) -> None:
    world = FunctionEnvironment(step=_outcomes(Outcome(), Outcome(reward=1.0), Outcome(reward=3.0, done=True)))
    arguments = AgentWorkflowParams(**options).model_dump()
    workflow = MultiTurnWorkflow(context(make_environment=lambda: world), **arguments)
    (trajectory,) = asyncio.run(workflow.run({}, "t:0")).trajectories
    assert [step.reward for step in trajectory.steps] == expected
    assert trajectory.reward == 4.0


@pytest.mark.parametrize(
    ("name", "value"), [("gamma", -0.1), ("gamma", 1.1), ("reward_bonus_coeff", -1.0), ("timeout", 0.0)]
)
def test_options_that_mean_nothing_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=name):
        AgentWorkflowParams(**{name: value})


def test_numbers_of_numpy_become_plain_ones(play: Any) -> None:
    correct: Any = np.bool_(True)
    metrics: Any = {"calls": np.int64(2)}
    reward: Any = np.float32(1.0)
    episode, _ = play(SingleTurnWorkflow, Outcome(reward=reward, done=True, correct=correct, metrics=metrics))
    assert episode.is_correct is True
    assert type(episode.metrics["calls"]) is float
    assert type(episode.trajectories[0].reward) is float


@pytest.mark.parametrize(("kind", "turns"), [(SingleTurnWorkflow, 1), (MultiTurnWorkflow, 4)])
def test_environment_never_done_ends_with_the_turns(play: Any, kind: type[Workflow], turns: int) -> None:
    episode, world = play(kind, *[Outcome(observation="more", reward=0.5)] * 5)
    assert episode.termination_reason is TerminationReason.MAX_TURNS_EXCEEDED
    assert len(episode.trajectories[0].steps) == turns
    assert episode.trajectories[0].reward == 0.5 * turns
    assert (episode.is_correct, world.closed) == (False, 1)


@pytest.mark.parametrize(("limit", "max_context"), [(7, 1000), (200, 8)])
def test_first_prompt_too_long_samples_nothing(engine: Any, play: Any, limit: int, max_context: int) -> None:
    engine.max_context = max_context  # 8 is exactly the prompt: no room for a token
    episode, world = play(SingleTurnWorkflow, max_prompt_length=limit)
    assert episode.termination_reason is TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
    assert (episode.trajectories[0].steps, episode.trajectories[0].reward) == ([], 0.0)
    assert (engine.prompts, world.closed) == ([], 1)


def test_prompt_of_exactly_allowed_length_is_generated(engine: Any, play: Any) -> None:
    engine.max_context = 9
    episode, _ = play(SingleTurnWorkflow, max_prompt_length=8)
    assert len(episode.trajectories[0].steps[0].response_ids) == engine.samplings[0].max_tokens == 1


def test_too_long_conversation_keeps_finished_steps(play: Any) -> None:
    episode, _ = play(MultiTurnWorkflow, *[Outcome(observation="x" * 20, reward=0.25)] * 3, max_prompt_length=50)
    assert episode.termination_reason is TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
    assert [len(step.prompt_ids) for step in episode.trajectories[0].steps] == [8, 37]
    assert episode.trajectories[0].reward == 0.5


@BOTH
@pytest.mark.parametrize(
    ("response", "outcome", "reason"),
    [
        ("too long$", Outcome(done=True, reward=0.0), TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED),
        ("too long$", Outcome(done=True, reward=1.0, correct=False), TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED),
        ("too long$", Outcome(done=True, reward=1.0), TerminationReason.ENV_DONE),
        ("too long$", Outcome(done=True, reward=0.0, correct=True), TerminationReason.ENV_DONE),
        ("short$", Outcome(done=True, reward=0.0), TerminationReason.ENV_DONE),
    ],
)
def test_truncated_wrong_responses_end_by_length(
    engine: Any, play: Any, kind: type[Workflow], response: str, outcome: Outcome, reason: TerminationReason
) -> None:
    engine.answer = lambda prompt, sampling: response
    episode, _ = play(kind, outcome, max_response_length=6)
    assert episode.termination_reason is reason
    cut_off = response == "too long$"
    assert episode.trajectories[0].steps[0].info == {"finish_reason": "length" if cut_off else "stop"}
    assert episode.trajectories[0].steps[0].text == response[:6].rstrip("$")


def test_only_the_length_of_the_last_response_decides(engine: Any, play: Any) -> None:
    responses = iter(["far too long$", "short$"])
    engine.answer = lambda prompt, sampling: next(responses)
    episode, _ = play(MultiTurnWorkflow, Outcome(observation="more"), Outcome(done=True), max_response_length=6)
    assert [step.info["finish_reason"] for step in episode.trajectories[0].steps] == ["length", "stop"]
    assert episode.termination_reason is TerminationReason.ENV_DONE


@BOTH
@pytest.mark.parametrize(
    ("world", "values"),
    [
        ({"step": lambda action: None}, ["step", "None", "Outcome"]),
        ({"step": lambda action: (1.0, True)}, ["step", "(1.0, True)"]),
        ({"step": lambda action: Outcome(reward="1 point", done=True)}, ["step", "'1 point' as 'reward'"]),
        ({"step": lambda action: Outcome(metrics={"x": [1]}, done=True)}, ["step", "[1] as 'x'"]),
        ({"reset": lambda task: None}, ["reset", "None"]),
        ({"reset": lambda task: ("hi", {})}, ["reset", "('hi', {})"]),
    ],
)
def test_environments_that_return_no_outcome_are_reported(
    context: Any, kind: Any, world: Any, values: list[str]
) -> None:
    made = FunctionEnvironment(**world)
    with expect_error(RolloutError, "bad-environment-result", "FunctionEnvironment.", ", line ", *values):
        _run_episode(kind, context(make_environment=lambda: made))
    assert made.closed == 1


@pytest.mark.parametrize("blocks", [True, False])
def test_blocking_environment_lives_in_a_separate_thread(context: MakeContext, blocks: bool) -> None:
    threads: list[int] = []

    def remember(*arguments: Any) -> Any:
        threads.append(threading.get_ident())

    def make_environment() -> Any:
        remember()
        return FunctionEnvironment(close=remember)

    _run_episode(SingleTurnWorkflow, context(make_environment=make_environment, environment_blocks=blocks))
    assert [thread != threading.get_ident() for thread in threads] == [blocks] * 2


@pytest.mark.parametrize("blocks", [True, False])
def test_failing_environment_constructor_raises_its_own_error(context: MakeContext, blocks: bool) -> None:
    with pytest.raises(ValueError, match="boom"):
        _run_episode(SingleTurnWorkflow, context(make_environment=_boom, environment_blocks=blocks))


@BOTH
def test_an_environment_that_hangs_in_close_is_abandoned(
    engine: Any, context: MakeContext, kind: type[Workflow], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert workflows.SECONDS_TO_CLOSE == 30.0
    monkeypatch.setattr(workflows, "SECONDS_TO_CLOSE", 0.05)
    release = threading.Event()
    world = FunctionEnvironment(close=lambda: release.wait() and None)
    try:
        episode = _run_episode(kind, context(make_environment=lambda: world, environment_blocks=True))
    finally:
        release.set()
    assert episode.trajectories[0].steps, "finished steps are kept"
    assert world.closed == 1
    assert len(engine.ended) == 1


def test_turns_differ_only_in_seed(engine: Any, context: MakeContext) -> None:
    world = FunctionEnvironment(step=lambda action: Outcome(observation="more"))
    sampling = SamplingParams(max_tokens=100, temperature=0.5, top_p=0.9, top_k=7, seed=11)

    def run() -> None:
        own = PerRolloutEngine(engine)
        _run_episode(MultiTurnWorkflow, context(engine=own, make_environment=lambda: world, sampling=sampling))

    run()
    seeds = [made.seed for made in engine.samplings]
    assert len(set(seeds)) == 4
    assert {(made.temperature, made.top_p, made.top_k) for made in engine.samplings} == {(0.5, 0.9, 7)}
    again = seeds.copy()
    engine.samplings.clear()
    run()
    assert [made.seed for made in engine.samplings] == again


def _boom(*arguments: Any) -> Any:
    raise ValueError("boom")


@BOTH
@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("method", ["reset", "step", "close"])
def test_an_environment_that_raises_is_closed(engine: Any, play: Any, kind: Any, method: str, blocks: bool) -> None:
    world = FunctionEnvironment(**{method: _boom})
    with pytest.raises(ValueError, match="boom"):
        play(kind, world=world, environment_blocks=blocks)
    assert (world.closed, len(engine.ended)) == (1, 1)


def test_environment_closes_if_the_session_cannot_end(engine: Any, context: MakeContext) -> None:
    engine.end_session = _boom
    world = FunctionEnvironment()
    with pytest.raises(ValueError, match="boom"):
        _run_episode(SingleTurnWorkflow, context(make_environment=lambda: world))
    assert world.closed == 1


@BOTH
@pytest.mark.parametrize("blocks", [True, False])
def test_an_environment_may_be_made_of_coroutines(play: Any, kind: type[Workflow], blocks: bool) -> None:
    async def reset(task: Any) -> str:
        await asyncio.sleep(0)
        return "go"

    async def step(action: str) -> Outcome:
        await asyncio.sleep(0)
        return Outcome(done=True, reward=2.0)

    episode, world = play(kind, world=FunctionEnvironment(reset=reset, step=step), environment_blocks=blocks)
    assert (episode.trajectories[0].reward, world.closed) == (2.0, 1)


def _stop_in_time(workflow: Workflow) -> Episode:
    """Run a workflow until its time is over, and return what it has of its episode."""

    async def run() -> None:
        async with asyncio.timeout(0.05):
            await workflow.run({}, "t:0")

    with pytest.raises(TimeoutError):
        virtual_time.run(run())
    assert workflow.episode is not None
    return workflow.episode


@BOTH
def test_cancellation_keeps_finished_steps_and_closes_environment(context: MakeContext, kind: Any, hang: Any) -> None:
    world = FunctionEnvironment(step=lambda action: hang())
    episode = _stop_in_time(kind(context(make_environment=lambda: world)))
    assert (len(episode.trajectories[0].steps), world.closed) == (1, 1)


@BOTH
def test_run_without_environment_is_an_error(context: MakeContext, kind: type[Workflow]) -> None:
    with expect_error(ConfigError, "no-environment", kind.__name__, "rllm.env.name"):
        _run_episode(kind, context())


def test_cancellation_shapes_rewards_of_finished_steps(context: MakeContext, hang: Any) -> None:
    given = iter([1.0, 2.0])

    def step(action: str) -> Any:
        reward = next(given, None)
        return hang() if reward is None else Outcome(observation="more", reward=reward)

    made = context(make_environment=lambda: FunctionEnvironment(step=step))
    (trajectory,) = _stop_in_time(MultiTurnWorkflow(made, gamma=0.5)).trajectories
    # The third answer was under way to the environment: it has earned nothing yet.
    assert [step.reward for step in trajectory.steps] == [1.0 + 0.5 * 2.0, 2.0, None]
    assert trajectory.reward == 3.0


class Calling(MultiTurnWorkflow):
    """Answers responses that begin with a question mark itself."""

    async def offered_tools(self, environment: Any, task: Any) -> Any:
        return [{"type": "function", "function": {"name": f"look_up_{task['topic']}"}}]

    async def answers_to_calls(self, response: Any, episode: Episode) -> Any:
        return [{"role": "tool", "content": "17"}] if response.content.startswith("?") else []


def test_responses_that_a_workflow_answers_are_no_actions(engine: Any, context: MakeContext) -> None:
    responses = iter(["?", "?$", "17$"])
    actions: list[str] = []

    def step(action: str) -> Outcome:
        actions.append(action)
        return Outcome(done=True, reward=1.0)

    engine.answer = lambda prompt, sampling: next(responses)
    engine.renderer = TemplateRenderer(ToolTokenizer(), [ord("$")])
    made = context(make_environment=lambda: FunctionEnvironment(step=step))
    episode = asyncio.run(Calling(made).run({"topic": "sums"}, "t:0"))
    first = '[{"type": "function", "function": {"name": "look_up_sums"}}]<u>go<a>'
    assert engine.prompts == [first, f"{first}?$<t>17<a>", f"{first}?$<t>17<a>?$<t>17<a>"]
    assert actions == ["17"]
    assert [step.reward for step in episode.trajectories[0].steps] == [0.0, 0.0, 1.0]
    assert episode.trajectories[0].tokens.prefix_breaks == 0


def test_calls_count_as_turns(engine: Any, context: MakeContext) -> None:
    engine.answer = lambda prompt, sampling: "?$"
    engine.renderer = TemplateRenderer(ToolTokenizer(), [ord("$")])
    made = context(make_environment=FunctionEnvironment, max_steps=3)
    episode = asyncio.run(Calling(made).run({"topic": "a"}, "t:0"))
    assert (len(engine.prompts), episode.termination_reason) == (3, TerminationReason.MAX_TURNS_EXCEEDED)
