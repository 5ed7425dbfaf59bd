"""Rollouts of a workflow under test, each with a separate context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rllm_core.contracts.agent import Agent
from rllm_core.contracts.engine import SamplingParams
from rllm_core.contracts.reward import Rollout as Scored, Score
from rllm_core.contracts.workflow import Workflow, WorkflowContext
from rllm_core.data.codec import trajectory_to_json
from rllm_core.data.types import Episode
from rllm_core.rollout.options import MathAgentParams
from rllm_core.rollout.runner import PerRolloutEngine
from rllm_core.rollout.workflows import MathAgent
from rllm_plugin_kit.playground import Answering, Fault, World

MAX_PROMPT = 400
MAX_RESPONSE = 12


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """Settings of a rollout."""

    uid: str = "task-0:3"
    seed: int = 0
    task: Mapping[str, Any] | None = None
    turns: int = 1
    fault: Fault = ""
    max_steps: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options to set in addition to the plugin's options."""

    def filled(self, *, task: Mapping[str, Any], turns: int) -> Rollout:
        """Return a copy with the test's number of turns, and with the test's task if none is set."""
        return replace(self, task=task if self.task is None else self.task, turns=turns)


@dataclass
class RolloutRun:
    """A rollout that is running, and the objects that it used."""

    engine: Answering
    world: World = field(default_factory=lambda: World(1))
    agents: int = 0
    scored: int = 0
    workflow: Workflow | None = None
    episode: Any = None
    """Result of the workflow."""

    def make_agent(self) -> Agent:
        """Make an agent for the rollout and count it."""
        self.agents += 1
        return MathAgent(MathAgentParams())

    async def score(self, rollout: Scored) -> Score:
        """A reward that adds nothing, counted."""
        self.scored += 1
        return Score(value=0.0)


async def run_rollout(
    make: Callable[..., Workflow], params: Any, rollout: Rollout, result: RolloutRun, resource: Any
) -> None:
    """Make the workflow as the runner does, and run it."""
    result.world.turns, result.world.fault = rollout.turns, rollout.fault
    context = WorkflowContext(
        engine=PerRolloutEngine(result.engine),
        sampling=SamplingParams(max_tokens=MAX_RESPONSE, temperature=0.8, seed=1000 + rollout.seed),
        max_prompt_length=MAX_PROMPT,
        max_response_length=MAX_RESPONSE,
        max_steps=rollout.max_steps,
        accumulate_reasoning=False,
        make_agent=result.make_agent,
        make_environment=result.world.make,
        environment_blocks=False,
        label="train",
        score=result.score,
        rollout=0,
        resource=resource,
    )
    result.workflow = make(context, **params.model_dump(), **rollout.options)
    result.episode = await result.workflow.run(rollout.task, rollout.uid)  # type: ignore[arg-type]


def describe_episode(episode: Episode) -> object:
    """Everything of an episode, to compare."""
    written = [trajectory_to_json(trajectory) for trajectory in episode.trajectories]
    return repr((episode.id, episode.is_correct, episode.termination_reason, sorted(episode.metrics.items()), written))
