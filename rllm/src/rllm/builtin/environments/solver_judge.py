"""`solver_judge`: several solvers answer the same question, and a judge picks one of their answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from rllm.builtin.environments.number_games import find_integer
from rllm_core.algorithms.columns import REWARD_COMPONENTS
from rllm_core.contracts.agent import Agent
from rllm_core.contracts.params import Params
from rllm_core.contracts.workflow import Workflow, WorkflowContext
from rllm_core.data.messages import Action, Message, Response, read_text
from rllm_core.data.types import Episode, Step, TerminationReason, Trajectory
from rllm_core.errors import ConfigError
from rllm_core.rollout.conversation import Conversation, PromptTooLongError
from rllm_core.rollout.template_renderer import END_THINK
from rllm_core.rollout.workflows import SingleTurnWorkflow
from rllm_core.seeding import derive_seed

JUDGE_PROMPT = "{task}\n{answers}\nWhich answer is right? Reply with its number only."


class SolverJudgeParams(Params):
    n_solvers: int = Field(2, gt=0)
    """Number of answers that the judge picks from."""
    judge_prompt: str = Field(JUDGE_PROMPT, pattern=r"\{answers\}")
    """Prompt for the judge. {task} is the solvers' prompt, {answers} are the numbered answers."""


class SolverJudge(Workflow):
    """Workflow with concurrent trajectories named ``solver``, and then a trajectory ``judge``, all by the same model.

    A solver's reward is its answer's reward. The judge's reward is the reward of the answer that it picks. If the pick
    cannot be read, the reward is 0, or the lowest reward of the answers if that is below 0. So it is never better than
    the worst pick. The rollout is correct if the picked answer is, and it has that answer's metrics. Two metrics are
    added: ``any_answer_correct``, which a perfect judge would reach, and ``unreadable_picks``.
    """

    config_keys: ClassVar[frozenset[str]] = SingleTurnWorkflow.config_keys

    def __init__(
        self, context: WorkflowContext, *, n_solvers: int = 2, judge_prompt: str = JUDGE_PROMPT, **unknown: Any
    ) -> None:
        super().__init__(context, **unknown)
        self._n_solvers = n_solvers
        self._judge_prompt = judge_prompt

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        self.episode = episode = Episode(id=uid)
        solvers = [Solver(_with_own_seed(self.context, "solver", index)) for index in range(self._n_solvers)]
        try:
            await _side_by_side(solver.run(task, f"{uid}/{index}") for index, solver in enumerate(solvers))
        finally:
            # Also after a timeout, so that the answers so far are trained on.
            for solver in solvers:
                episode.trajectories += solver.episode.trajectories if solver.episode else []
        answers = [solver.episode for solver in solvers if solver.episode]
        reasons = {answer.termination_reason for answer in answers}
        if TerminationReason.MAX_TURNS_EXCEEDED in reasons:
            raise ConfigError(
                "environment-not-single-turn",
                "Workflow solver_judge needs an environment that ends after one answer, and this one did not end.",
                "Choose another environment, or rllm.workflow.name=multi_turn_workflow.",
            )
        if TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED in reasons:  # all were asked the same
            episode.termination_reason = TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
            return episode
        await self._judge(episode, answers, self._fill_judge_prompt(solvers))
        return episode

    async def _judge(self, episode: Episode, answers: Sequence[Episode], prompt: str) -> None:
        """Let the judge pick one of the solvers' `answers`."""
        judged = [answer.trajectories[0] for answer in answers]
        judge = Trajectory("judge", uid=f"{episode.id}/judge")
        _assign_reward(judge, judged, None)  # what it has until it picks
        episode.trajectories.append(judge)
        episode.metrics["any_answer_correct"] = float(any(answer.is_correct for answer in answers))
        context = _with_own_seed(self.context, "judge")
        conversation = Conversation(context, judge, session=f"{judge.uid}#{context.sampling.seed}")
        conversation.add_observation(prompt)
        try:
            step = await conversation.generate()
        except PromptTooLongError:
            episode.termination_reason = TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
            return
        finally:
            await conversation.close()
        pick = read_pick(conversation.parse_step(step).content, len(answers))
        _assign_reward(judge, judged, pick)
        if pick is not None:
            episode.is_correct = answers[pick].is_correct
            episode.metrics.update(answers[pick].metrics)
        step.reward = judge.reward
        episode.metrics["unreadable_picks"] = float(pick is None)
        episode.termination_reason = _termination_reason(step, episode.is_correct)

    def _fill_judge_prompt(self, solvers: Sequence[Solver]) -> str:
        agents = [solver.agent for solver in solvers]
        numbered = [f"{number}. {without_reasoning(agent.answer)}" for number, agent in enumerate(agents, 1)]
        parts = {"task": _text(agents[0].observation), "answers": "\n".join(numbered)}
        return re.sub(r"\{(task|answers)\}", lambda match: parts[match[1]], self._judge_prompt)


def read_pick(response: str, answers: int) -> int | None:
    """Return the index of the picked answer. The first number in the judge's response picks it, counted from 1."""
    number = find_integer(without_reasoning(response))
    return number - 1 if number is not None and 1 <= number <= answers else None


def without_reasoning(response: str) -> str:
    """Return a response without its reasoning."""
    return response.rpartition(END_THINK)[2].strip()


class Solver(SingleTurnWorkflow):
    """One rollout of the environment. It records the question and the answer for the judge."""

    role = "solver"

    def __init__(self, context: WorkflowContext) -> None:
        self.agent = _RecordingAgent(context.make_agent())
        super().__init__(replace(context, make_agent=lambda: self.agent))


class _RecordingAgent(Agent):
    """An agent wrapper that records the prompts and responses for the judge."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.observation: str | Sequence[Message] = ""
        self.answer = ""

    def observe(self, observation: str | Sequence[Message]) -> Sequence[Message]:
        self.observation = observation
        return self._agent.observe(observation)

    def act(self, response: Response) -> Action:
        action = self._agent.act(response)
        self.answer = action if isinstance(action, str) else json.dumps(dict(action), ensure_ascii=False)
        return action


def _assign_reward(judge: Trajectory, answers: Sequence[Trajectory], pick: int | None) -> None:
    """Copy the reward and its components from the picked answer. Without a pick, use the lowest, and at most 0."""

    def combine(values: Sequence[float]) -> float:
        return min(0.0, *values) if pick is None else values[pick]

    counting = answers if pick is None else answers[pick : pick + 1]
    if any(answer.reward is None for answer in counting):
        judge.reward = None  # the judge's own reward is missing too
        return
    judge.reward = combine([0.0 if answer.reward is None else float(answer.reward) for answer in answers])
    parts: list[Mapping[str, float]] = [answer.info.get(REWARD_COMPONENTS, {}) for answer in answers]
    components = {
        name: combine([part[name] for part in parts]) for name in parts[0] if all(name in part for part in parts)
    }
    if components:
        judge.info[REWARD_COMPONENTS] = components


def _text(observation: str | Sequence[Message]) -> str:
    if isinstance(observation, str):
        return observation
    return "\n".join(read_text(message) for message in observation)


def _with_own_seed(context: WorkflowContext, *who: str | int) -> WorkflowContext:
    """Return the context with a seed for this solver or judge. With a shared seed, all solvers would agree."""
    return replace(context, sampling=replace(context.sampling, seed=derive_seed(context.sampling.seed, *who)))


def _termination_reason(step: Step, correct: bool) -> TerminationReason:
    """Return the termination reason. As in other rollouts, a cut-off response with the right pick is complete."""
    cut_off = step.info["finish_reason"] == "length" and not correct
    return TerminationReason.MAX_RESPONSE_LENGTH_EXCEEDED if cut_off else TerminationReason.ENV_DONE


async def _side_by_side(rollouts: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Wait for all rollouts. The first error cancels the others and is raised unchanged."""
    running = [asyncio.ensure_future(rollout) for rollout in rollouts]
    try:
        await asyncio.gather(*running)
    finally:
        for future in running:
            future.cancel()
        # Let cancelled rollouts close their environments before the error is raised.
        await asyncio.gather(*running, return_exceptions=True)
