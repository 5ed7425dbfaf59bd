"""One rollout of solvers and a judge, with a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import virtual_time
from character_engine import Answer, CharacterEngine, in_turn
from expecting import expect_error
from pydantic import ValidationError
from rollout_context import context_of

from rllm.builtin.environments.plugin import rllm_workflows
from rllm.builtin.environments.solver_judge import JUDGE_PROMPT, SolverJudge, SolverJudgeParams, read_pick
from rllm_core.algorithms.columns import REWARD_COMPONENTS
from rllm_core.contracts.agent import Agent
from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.contracts.stage import RolloutRequest
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.data.messages import Response
from rllm_core.data.types import Episode, Task, TerminationReason
from rllm_core.errors import ConfigError
from rllm_core.rollout.runner import RolloutRunner, RunnerSettings

QUESTION = "3+4"


class Paid(Environment):
    """Pays each answer what `rewards` say; an answer that pays above 0 is correct."""

    def __init__(
        self, rewards: Mapping[str, float], *, question: Any = QUESTION, done: bool = True, components: bool = False
    ) -> None:
        self._rewards, self._question, self._done, self._components = rewards, question, done, components
        self.closed = False

    @classmethod
    def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
        return []

    def reset(self, task: Mapping[str, Any]) -> Any:
        return self._question

    def step(self, action: str) -> Outcome:
        reward = self._rewards[action]
        return Outcome(
            reward=reward,
            done=self._done,
            correct=reward > 0,
            reward_components={"paid": reward} if self._components else {},
            metrics={"length": len(action)},
        )

    def close(self) -> None:
        self.closed = True


def context(engine: CharacterEngine, environment: Callable[[], Environment] | None, **changes: Any) -> WorkflowContext:
    return context_of(engine, make_environment=environment, **changes)


def run_workflow(
    engine: CharacterEngine, rewards: Mapping[str, float], *, paid: Any = None, fields: Any = None, **options: Any
) -> Episode:
    """Run a rollout. `paid` are options of the environment, `fields` fields of the context."""
    workflow = SolverJudge(context(engine, lambda: Paid(rewards, **paid or {}), **fields or {}), **options)
    return asyncio.run(workflow.run({}, "t:0"))


def rewards_of(episode: Episode) -> list[tuple[str, float | None]]:
    return [(trajectory.name, trajectory.reward) for trajectory in episode.trajectories]


def test_judge_picks_one_of_the_solvers_answers() -> None:
    engine = CharacterEngine(in_turn("8$", "7$", "2$"))
    episode = run_workflow(engine, {"8": 0.0, "7": 1.0})
    assert engine.prompts[:2] == ["3+4|", "3+4|"]
    assert engine.prompts[2] == "3+4\n1. 8\n2. 7\nWhich answer is right? Reply with its number only.|"
    assert rewards_of(episode) == [("solver", 0.0), ("solver", 1.0), ("judge", 1.0)]
    assert [[step.reward for step in trajectory.steps] for trajectory in episode.trajectories] == [[0.0], [1.0], [1.0]]
    assert (episode.id, episode.is_correct, episode.termination_reason) == ("t:0", True, TerminationReason.ENV_DONE)
    assert episode.metrics == {"any_answer_correct": 1.0, "unreadable_picks": 0.0, "length": 1.0}
    assert len({trajectory.uid for trajectory in episode.trajectories}) == 3
    assert not any(trajectory.info for trajectory in episode.trajectories)


@pytest.mark.parametrize("n_solvers", [1, 12])
def test_as_many_solvers_answer_as_the_option_says(n_solvers: int) -> None:
    engine = CharacterEngine(in_turn(*["8$"] * (n_solvers - 1), "7$", f"{n_solvers}$"))
    episode = run_workflow(engine, {"8": 0.0, "7": 1.0}, n_solvers=n_solvers)
    assert [name for name, _ in rewards_of(episode)] == ["solver"] * n_solvers + ["judge"]
    assert f"\n{n_solvers}. 7\n" in engine.prompts[-1]
    assert episode.is_correct


@pytest.mark.parametrize(
    ("response", "pick"),
    [
        ("2", 1),
        (" 1.", 0),
        ("Answer 2 is right, and answer 1 is not", 1),
        ("#2", 1),
        ("the 3rd", 2),
        ("<think>1 or 3? 3.</think>\n\nNumber 2", 1),
        ("02", 1),
        ("", None),
        ("neither", None),
        ("0", None),
        ("4", None),
        ("7 is the sum, so 2", None),
        ("1" * 5000, None),
    ],
)
def test_first_number_of_the_response_is_picked(response: str, pick: int | None) -> None:
    assert read_pick(response, 3) == pick


@pytest.mark.parametrize(
    ("rewards", "worst"), [((0.0, 1.0), 0.0), ((0.5, 1.0), 0.0), ((-1.0, 1.0), -1.0), ((-1.0, -3.0), -3.0)]
)
def test_an_unreadable_pick_pays_the_worst_reward(rewards: tuple[float, float], worst: float) -> None:
    episode = run_workflow(CharacterEngine(in_turn("a$", "b$", "both$")), dict(zip("ab", rewards, strict=True)))
    assert episode.trajectories[-1].reward == episode.trajectories[-1].steps[0].reward == worst
    assert not episode.is_correct
    assert episode.metrics["unreadable_picks"] == 1.0


@pytest.mark.parametrize(("pick", "reward"), [("1", -0.5), ("2", 1.0), ("none", -0.5)])
def test_the_judge_gets_the_reward_of_its_pick(pick: str, reward: float) -> None:
    engine = CharacterEngine(in_turn("a$", "b$", f"{pick}$"))
    episode = run_workflow(engine, {"a": -0.5, "b": 1.0}, paid={"components": True})
    judge = episode.trajectories[-1]
    assert (judge.reward, judge.info[REWARD_COMPONENTS]) == (reward, {"paid": reward})
    assert (episode.is_correct, episode.metrics["any_answer_correct"]) == (reward > 0, 1.0)


def test_solver_seeds_differ_and_depend_only_on_rollout() -> None:
    engines = [CharacterEngine(in_turn("7$", "7$", "1$")) for _ in range(2)]
    for engine in engines:
        run_workflow(engine, {"7": 1.0})
    assert len(set(engines[0].seeds)) == 3
    assert engines[0].seeds == engines[1].seeds
    assert sorted(engines[0].ended) == sorted(engines[0].sessions)
    assert len(set(engines[0].sessions)) == 3


def test_solvers_answer_side_by_side() -> None:
    together = asyncio.Barrier(3)

    async def response(prompt: str, sampling: SamplingParams) -> str:
        if prompt == "3+4|":
            await together.wait()
            return "7$"
        return "1$"

    async def run() -> Episode:
        workflow = SolverJudge(context(CharacterEngine(response), lambda: Paid({"7": 1.0})), n_solvers=3)
        return await asyncio.wait_for(workflow.run({}, "t:0"), timeout=100)

    assert asyncio.run(run()).is_correct


def _hanging_at(call: int) -> Answer:
    """Says ``7`` and ``1``, but the `call`-th call never ends."""
    calls = iter(range(3))

    async def response(prompt: str, sampling: SamplingParams) -> str:
        if next(calls) == call:
            await asyncio.sleep(3600)
        return "1$" if "1. 7" in prompt else "7$"

    return response


@pytest.mark.parametrize(
    ("hanging", "expected", "steps"),
    [
        (1, [("solver", 1.0), ("solver", 0.0)], [1, 0]),
        (2, [("solver", 1.0), ("solver", 1.0), ("judge", 0.0)], [1, 1, 0]),
    ],
    ids=["solver", "judge"],
)
def test_finished_steps_remain_after_a_timeout(hanging: int, expected: list[Any], steps: list[int]) -> None:
    engine = CharacterEngine(_hanging_at(hanging))
    worlds: list[Paid] = []

    def make_environment() -> Paid:
        worlds.append(Paid({"7": 1.0}))
        return worlds[-1]

    settings = RunnerSettings(n_parallel_tasks=1, retry_limit=1, raise_on_error=True, trajectory_timeout=0.2)
    runner = RolloutRunner(
        lambda rollout: SolverJudge(context(engine, make_environment, sampling=rollout.sampling)), settings
    )
    order = RolloutRequest(tasks=[Task(id="t")], rollouts=1, sampling=SamplingParams(max_tokens=40), label="train")
    (episode,) = virtual_time.run(runner.run(order))
    assert episode.termination_reason is TerminationReason.TIMEOUT
    assert rewards_of(episode) == expected
    assert [len(trajectory.steps) for trajectory in episode.trajectories] == steps
    assert [world.closed for world in worlds] == [True, True]
    assert sorted(engine.ended) == sorted(engine.sessions)


def test_error_of_one_solver_ends_the_others() -> None:
    async def response(prompt: str, sampling: SamplingParams) -> str:
        if len(engine.prompts) == 1:
            await asyncio.sleep(3600)
        return "unheard of$"

    engine = CharacterEngine(response)
    worlds = [Paid({}), Paid({})]
    remaining = iter(worlds)
    with pytest.raises(KeyError, match="unheard of"):
        asyncio.run(SolverJudge(context(engine, lambda: next(remaining))).run({}, "t:0"))
    assert [world.closed for world in worlds] == [True, True]
    assert sorted(engine.ended) == sorted(engine.sessions)


def test_environment_of_one_turn_is_needed() -> None:
    engine = CharacterEngine(in_turn("7$", "7$"))
    with expect_error(ConfigError, "environment-not-single-turn", "multi_turn_workflow"):
        run_workflow(engine, {"7": 1.0}, paid={"done": False})
    with expect_error(ConfigError, "no-environment"):
        asyncio.run(SolverJudge(context(CharacterEngine(in_turn()), None)).run({}, "t:0"))


@pytest.mark.parametrize(
    ("limit", "expected", "prompts"),
    [
        (3, [("solver", 0.0), ("solver", 0.0)], 0),
        (10, [("solver", 1.0), ("solver", -1.0), ("judge", -1.0)], 2),
    ],
    ids=["question", "answers"],
)
def test_prompts_that_are_too_long_end_the_rollout(limit: int, expected: list[Any], prompts: int) -> None:
    engine = CharacterEngine(in_turn("7$", "8$"))
    episode = run_workflow(engine, {"7": 1.0, "8": -1.0}, fields={"max_prompt_length": limit})
    assert episode.termination_reason is TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
    assert (rewards_of(episode), len(engine.prompts)) == (expected, prompts)
    assert not episode.is_correct


@pytest.mark.parametrize(
    ("pick", "reason"),
    [("1", TerminationReason.ENV_DONE), ("2", TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED)],
)
def test_a_right_pick_may_be_cut_off(pick: str, reason: TerminationReason) -> None:
    episode = run_workflow(CharacterEngine(in_turn("7$", "8$", pick)), {"7": 1.0, "8": 0.0})
    assert episode.termination_reason is reason


def test_judge_prompt_has_agent_answers_without_reasoning() -> None:
    class Shouting(Agent):
        def observe(self, observation: Any) -> Any:
            return [{"role": "system", "content": "shout"}, {"role": "user", "content": observation}]

        def act(self, response: Response) -> str:
            return response.text.upper()

    engine = CharacterEngine(in_turn("a$", "<think>b?</think> c$", "1$"))
    rewards = {"A": 1.0, "<THINK>B?</THINK> C": 0.0}
    run_workflow(engine, rewards, fields={"make_agent": Shouting})
    assert engine.prompts[0] == "shout|3+4|"
    assert engine.prompts[2].startswith("3+4\n1. A\n")
    engine = CharacterEngine(in_turn("<think>a?</think>\nb$", "b$", "1$"))
    run_workflow(engine, {"<think>a?</think>\nb": 0.0, "b": 1.0})
    assert engine.prompts[2].startswith("3+4\n1. b\n2. b\n")


def test_judge_prompt_keeps_messages_and_braces_as_text() -> None:
    question = [{"role": "system", "content": "Add."}, {"role": "user", "content": QUESTION}]
    engine = CharacterEngine(in_turn("7$", "7$", "1$"))
    run_workflow(engine, {"7": 1.0}, paid={"question": question})
    assert engine.prompts[2].startswith("Add.\n3+4\n1. 7\n")
    engine = CharacterEngine(in_turn("{task}$", "{x}$", "1$"))
    rewards = {"{task}": 1.0, "{x}": 0.0}
    run_workflow(engine, rewards, paid={"question": "{answers}"}, judge_prompt="{answers}; {task}; {other}")
    assert engine.prompts[2] == "1. {task}\n2. {x}; {answers}; {other}|"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_solvers": 0}, "greater than 0"),
        ({"judge_prompt": "Which is right?"}, "should match pattern"),
        ({"solvers": 3}, "Extra inputs"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SolverJudgeParams(**options)


def test_plugin_spec_has_default_values_of_the_workflow() -> None:
    (record,) = rllm_workflows()
    assert (record.name, record.load(), record.config_keys) == ("solver_judge", SolverJudge, SolverJudge.config_keys)
    assert SolverJudgeParams().model_dump() == SolverJudge.__init__.__kwdefaults__
    assert SolverJudgeParams().judge_prompt == JUDGE_PROMPT
    with expect_error(ConfigError, "unknown-option"):
        SolverJudge(context(CharacterEngine(in_turn()), None), solvers=3)
