"""The workflow `agent`: run a user's agent on a task, and train on its model calls."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from rllm.tasks.task_directories import TASK_DIRECTORY
from rllm_core.contracts.workflow import Workflow, WorkflowContext
from rllm_core.data.types import Episode, Step, TerminationReason
from rllm_core.errors import RolloutError
from rllm_core.notices import warn_once
from rllm_core.schema.sdk_section import ProcessingSection
from rllm_gateway.episodes import Returned, add_score, pay, read_returned, rollout_of, traced
from rllm_gateway.link import SessionSpec, SessionTrace
from rllm_gateway.link_trainer import RolloutSampler, TrainerLink
from rllm_gateway.running.runners import Outcome, environment_of

NO_CALL = "the agent made no call of the gateway; does its client have an address of its own?"


class Silence:
    """Warns if the first rollouts of a run make no model call."""

    def __init__(self, rollouts: int) -> None:
        """Warn after `rollouts` rollouts without a call. It is the number of rollouts of a step."""
        self._left = rollouts

    def note(self, calls: int) -> None:
        """Count a finished rollout that sent `calls` requests to the gateway."""
        if calls:
            # The agent uses the gateway, so later rollouts without a call are its own choice.
            self._left = 0
        if self._left:
            self._left -= 1
            if not self._left:
                warn_once(NO_CALL)


LONGEST_SLUG = 100


class Runner(Protocol):
    """Runs an agent, each rollout in a separate process."""

    async def run(self, task: Mapping[str, Any], environment: Mapping[str, str]) -> Outcome: ...


@dataclass(frozen=True, kw_only=True)
class OpenedGateway:
    """The objects that all rollouts of a run share."""

    link: TrainerLink
    runner: Runner
    run: str
    """Name of the run, in every row of the store."""
    processing: ProcessingSection
    engine_stops: bool
    """True if the engine supports stop strings."""
    silence: Silence
    """Warns if the agent makes no model call."""


class AgentWorkflow(Workflow):
    """Opens a session, runs the agent with it, and makes one trajectory per role from its model calls.

    If the agent fails, the rollout fails, and the error contains the agent's last lines. If the agent fails because it
    reached the call limit or the prompt limit, the rollout ends with that termination reason instead.
    """

    config_keys: ClassVar[frozenset[str]] = frozenset(
        {"rllm.agent.max_steps", "rllm.accumulate_reasoning", "rllm.reward", "rllm.sandbox", "rllm.sdk.*"}
    )

    def __init__(self, context: WorkflowContext, *, unsupported: Any = "refuse", **options: Any) -> None:
        # `open` uses agent, command and timeout.
        used = {"agent", "command", "timeout"}
        super().__init__(context, **{name: options[name] for name in options.keys() - used})
        self._unsupported = unsupported
        self._gateway: OpenedGateway = context.resource
        self._last: Step | None = None

    async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Episode:
        gateway, context = self._gateway, self.context
        self.episode = Episode(id=uid)
        spec = self._spec(task, uid)
        sampler = RolloutSampler(
            context.engine,
            context.sampling,
            f"{uid}#{context.sampling.seed}",
            max_prompt_length=context.max_prompt_length,
            engine_stops=gateway.engine_stops,
        )
        session = await gateway.link.open_session(spec, sampler)
        try:
            seen = {key: value for key, value in task.items() if key != TASK_DIRECTORY}
            outcome = await gateway.link.unless_ended(gateway.runner.run(task, environment_of(session, seen)))
        finally:
            # Do this after a timeout too, because the calls before it are used for training.
            trace = await self._closed(spec, sampler)
        self._check(trace, sampler)
        if outcome.code:
            self._end_early(outcome, trace, sampler)
            if outcome.returned is None:
                return self.episode
        else:
            self.episode.termination_reason = TerminationReason.ENV_DONE
        await self._judge(task, read_returned(outcome.returned), trace)
        return self.episode

    def _spec(self, task: Mapping[str, Any], uid: str) -> SessionSpec:
        context, processing = self.context, self._gateway.processing
        slug = re.sub(r"[^A-Za-z0-9._~-]", "-", uid)[:LONGEST_SLUG]
        return SessionSpec(
            # The same uid occurs again in later epochs and runs, so add a random part.
            id=f"{slug}~{secrets.token_hex(6)}",
            run=self._gateway.run,
            rollout=uid,
            retry=context.rollout,
            metadata=dict(task),
            label="train" if context.label == "train" else "val",
            task_batch=context.task_batch,
            max_tokens=context.max_response_length,
            max_prompt_length=min(context.max_prompt_length, context.engine.max_context - 1),
            max_calls=context.max_steps,
            temperature=context.sampling.temperature,
            accumulate_reasoning=context.accumulate_reasoning,
            group_key=processing.groupby_key,
            name_key=processing.traj_name_key,
            unsupported=self._unsupported,
            keeps_messages=context.score is not None,
        )

    async def _closed(self, spec: SessionSpec, sampler: RolloutSampler) -> SessionTrace:
        """Seal the session, and add its trajectories and metrics to the episode."""
        assert self.episode is not None
        try:
            trace = await self._gateway.link.close_session(spec.id)
        finally:
            await sampler.close()
        self._gateway.silence.note(trace.requests)
        for step in sampler.calls.values():
            step.text = self.context.engine.renderer.text(step.response_ids)
        made = traced(trace, sampler.calls, self.episode.id, sampler.cut_tokens)
        self._last = None if made.last is None else sampler.calls[made.last]
        self.episode.trajectories = made.trajectories
        self.episode.metrics.update(made.metrics)
        # This reward applies until the agent returns one. After a timeout, it returns none.
        pay(self.episode, Returned(reward=0.0, rewards=trace.rewards))
        return trace

    def _check(self, trace: SessionTrace, sampler: RolloutSampler) -> None:
        if sampler.backend_error is not None:
            raise sampler.backend_error
        if trace.ending == "failed":
            raise RolloutError(
                "store-failed",
                "The gateway could not store a call of this rollout.",
                "Check the disk. Check that no program deleted or replaced the store (rllm.sdk.store.path). Run again.",
            )

    def _end_early(self, outcome: Outcome, trace: SessionTrace, sampler: RolloutSampler) -> None:
        assert self.episode is not None
        if sampler.too_long or trace.too_long:
            self.episode.termination_reason = TerminationReason.MAX_PROMPT_LENGTH_EXCEEDED
        elif trace.calls_used_up:
            self.episode.termination_reason = TerminationReason.MAX_TURNS_EXCEEDED
        elif outcome.timed_out:
            self.episode.termination_reason = TerminationReason.TIMEOUT
            self.episode.error = f"{outcome.failure}."
        elif outcome.returned is not None and trace.requests:
            # The agent worked on the task, and the tests have scored its work.
            self.episode.termination_reason = TerminationReason.ENV_DONE
        else:
            raise RolloutError("agent-failed", f"{outcome.failure}.", details="\n".join(outcome.last_lines))

    async def _judge(self, task: Mapping[str, Any], returned: Returned, trace: SessionTrace) -> None:
        assert self.episode is not None
        given = Returned(
            reward=returned.reward,
            rewards={**trace.rewards, **returned.rewards},
            answer=returned.answer,
            correct=returned.correct,
            metrics=returned.metrics,
        )
        pay(self.episode, given)
        if self.context.score is not None and self._last is not None and trace.said is not None:
            rollout = rollout_of(task, self.episode, self._last, trace.said, given.answer, self.context)
            add_score(self.episode, await self.context.score(rollout), given)
