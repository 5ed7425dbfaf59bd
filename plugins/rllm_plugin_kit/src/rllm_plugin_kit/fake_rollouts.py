"""Rollouts of a workflow under test, with a fake engine and with fake environments that can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.agent import Agent
from rllm_core.contracts.engine import Completion, SamplingParams
from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.contracts.reward import Rollout as Scored, Score
from rllm_core.contracts.workflow import Workflow, WorkflowContext
from rllm_core.data.codec import trajectory_to_json
from rllm_core.data.types import Episode, Task
from rllm_core.rollout.options import MathAgentParams
from rllm_core.rollout.prompts import checked_prompt
from rllm_core.rollout.runner import PerRolloutEngine
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.rollout.workflows import MathAgent
from rllm_core.seeding import derive_seed

STOP_ID = 1
FIRST_ID = 10
"""Characters are tokens from here on, so that special ones stay apart."""
MAX_CONTEXT = 2000

Fault = Literal["", "reset raises", "step raises", "reset hangs", "step hangs", "never done", "engine raises"]


class CharacterTokenizer:
    """A tokenizer with one token per character; turns begin with ``<u>``, ``<a>``, …."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **options: Any) -> str:
        said = [f"<{message['role'][0]}>{message['content']}" for message in conversation]
        ended = [text + ("$" if text.startswith("<a>") else "") for text in said]
        return "".join(ended) + "<a>"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [STOP_ID if character == "$" else FIRST_ID + ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(chr(token - FIRST_ID) for token in token_ids if token >= FIRST_ID)


@dataclass(frozen=True)
class Call:
    """One request that the engine has answered."""

    session: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    completion: Completion


@dataclass
class FakeEngine:
    """A rollout engine whose responses depend only on prompt and seed, as with every engine."""

    responses: Sequence[str]
    fault: Fault = ""
    renderer: TemplateRenderer = field(default_factory=lambda: TemplateRenderer(CharacterTokenizer(), {STOP_ID}))
    max_context: int = MAX_CONTEXT
    calls: list[Call] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)

    async def generate(
        self, prompt_ids: Sequence[int] | NDArray[np.int32], sampling: SamplingParams, *, session: str
    ) -> Completion:
        self.ended.discard(session)
        prompt, room = checked_prompt(prompt_ids, sampling, self.max_context)
        if self.fault == "engine raises":
            raise RuntimeError("the engine raises")
        await asyncio.sleep(0)
        draw = derive_seed(sampling.seed, *prompt.tolist())
        text = self.responses[draw % len(self.responses)]
        tokens = [*CharacterTokenizer().encode(text, add_special_tokens=False), STOP_ID][:room]
        # Like real ones, and telling calls apart.
        logprobs = -np.random.default_rng(draw).exponential(1.0, len(tokens)).astype(np.float32) - 0.01
        completion = Completion(
            token_ids=np.array(tokens, np.int32),
            logprobs=logprobs,
            finish_reason="stop" if tokens[-1] == STOP_ID else "length",
            weight_version=7,
        )
        self.calls.append(Call(session, tuple(prompt.tolist()), sampling, completion))
        return completion

    async def end_session(self, session: str) -> None:
        self.ended.add(session)

    @property
    def open_sessions(self) -> set[str]:
        """Sessions that were used and not ended."""
        return {call.session for call in self.calls} - self.ended


@dataclass
class FakeEnvironments:
    """Makes the environments of rollouts, and knows which of them are open."""

    turns: int
    fault: Fault = ""
    made: list[FakeEnvironment] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)

    def make(self) -> Environment:
        """An environment for one rollout."""
        self.made.append(FakeEnvironment(self))
        return self.made[-1]

    @property
    def close_counts(self) -> list[int]:
        """How often each was closed."""
        return [environment.close_count for environment in self.made]


class FakeEnvironment(Environment):
    """An environment that repeats each action and ends after some turns. The reward is the share of even characters."""

    def __init__(self, environments: FakeEnvironments) -> None:
        self._environments = environments
        self._turn = 0
        self.close_count = 0

    @classmethod
    def tasks(cls, split: Split, params: Any) -> Sequence[Task]:
        return []

    async def reset(self, task: Mapping[str, Any]) -> str:
        await self._apply_fault("reset")
        return f"Play {sorted(task.items())}"

    async def step(self, action: Any) -> Outcome:
        await self._apply_fault("step")
        self._turn += 1
        words = str(action)
        reward = sum(ord(character) % 2 == 0 for character in words) / (len(words) or 1)
        done = self._environments.fault != "never done" and self._turn >= self._environments.turns
        return Outcome(observation=f"You said {words[:20]}.", reward=reward, done=done, metrics={"turns": self._turn})

    def close(self) -> None:
        self.close_count += 1

    async def _apply_fault(self, method: str) -> None:
        await asyncio.sleep(0)
        if self._environments.fault == f"{method} raises":
            raise RuntimeError(f"{method} raises")
        if self._environments.fault == f"{method} hangs":
            self._environments.hanging.set()
            await asyncio.Event().wait()


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

    def fill_in(self, *, task: Mapping[str, Any], turns: int) -> Rollout:
        """Return a copy with the test's number of turns, and with the test's task if none is set."""
        return replace(self, task=task if self.task is None else self.task, turns=turns)


@dataclass
class RolloutRun:
    """A rollout that is running, and the objects that it used."""

    engine: FakeEngine
    environments: FakeEnvironments = field(default_factory=lambda: FakeEnvironments(1))
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
    result.environments.turns, result.environments.fault = rollout.turns, rollout.fault
    context = WorkflowContext(
        engine=PerRolloutEngine(result.engine),
        sampling=SamplingParams(max_tokens=MAX_RESPONSE, temperature=0.8, seed=1000 + rollout.seed),
        max_prompt_length=MAX_PROMPT,
        max_response_length=MAX_RESPONSE,
        max_steps=rollout.max_steps,
        accumulate_reasoning=False,
        make_agent=result.make_agent,
        make_environment=result.environments.make,
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
