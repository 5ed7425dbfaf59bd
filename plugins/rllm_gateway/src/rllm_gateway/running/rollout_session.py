"""A session for the model calls of one rollout: open it, close it, and make trajectories of its calls."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rllm.builtin.tasks.task_directories import without_facts
from rllm_core.contracts.workflow import WorkflowContext
from rllm_core.errors import RolloutError
from rllm_core.notices import warn_once
from rllm_core.schema.run_sections import ProcessingSection
from rllm_gateway.apis.fields import SAMPLERS, to_snake_case
from rllm_gateway.running.episodes import SessionTrajectories, make_trajectories
from rllm_gateway.sampling.link_trainer import RolloutSampler, TrainerLink
from rllm_gateway.sessions.link import SOURCES, OpenedSession, RewardSource, SessionSpec, SessionTrace

LONGEST_SLUG = 100
OVERRULED = "overruled/"


@dataclass(frozen=True, kw_only=True)
class OpenedGateway:
    """The gateway of a run, which all rollouts share."""

    link: TrainerLink
    run: str
    """Name of the run, in every row of the store."""
    processing: ProcessingSection
    engine_stops: bool
    """True if the engine supports stop strings."""


def warn_of_rejected_reward(source: RewardSource) -> None:
    """Warn once that an agent, or a command that its model wrote, reported a reward that does not count."""
    warn_once(
        f"a reported reward was rejected, because rewards come from {SOURCES[source]}. "
        "The metric env/gateway/rejected_rewards counts such reports."
    )


def overruled_samplers(trace: SessionTrace) -> list[str]:
    """Return the names of the sampling parameters with which requests differ from the run."""
    names = [name.removeprefix(OVERRULED) for name in trace.counters if name.startswith(OVERRULED)]
    return [name for name in names if to_snake_case(name) in SAMPLERS]


class RolloutSession:
    """A session of the gateway. The engine of a rollout samples its responses."""

    def __init__(
        self,
        gateway: OpenedGateway,
        context: WorkflowContext,
        task: Mapping[str, Any],
        uid: str,
        *,
        part: str = "",
        unsupported: Literal["refuse", "ignore"] = "refuse",
        reward_source: RewardSource = "environment",
    ) -> None:
        """Make a session, which is not open yet.

        Args:
            gateway: the gateway of the run.
            context: context of the rollout.
            task: data of the task.
            uid: uid of the rollout.
            part: name of the session among the sessions of its rollout. Empty if the rollout has only one.
            unsupported: see `SessionSpec.unsupported`.
            reward_source: source of the rollout's reward.
        """
        self._gateway, self._unsupported, self._reward_source = gateway, unsupported, reward_source
        self._context, self._task, self._uid = context, task, uid
        self._part = f"/{part}" if part else ""
        self.spec = self._make_spec()
        self.sampler = RolloutSampler(
            context.engine,
            context.sampling,
            f"{uid}{self._part}#{context.sampling.seed}",
            max_prompt_length=context.max_prompt_length,
            engine_stops=gateway.engine_stops,
        )

    async def open(self) -> OpenedSession:
        """Open the session, and return its address.

        Raises:
            BackendError: the gateway rejected the session, has stopped, or does not answer.
        """
        return await self._gateway.link.open_session(self.spec, self.sampler)

    async def close(self) -> tuple[SessionTrace, SessionTrajectories]:
        """Seal the session. Return its trace, and the trajectories of its calls.

        Raises:
            BackendError: the gateway has stopped, or does not answer.
        """
        try:
            trace = await self._gateway.link.close_session(self.spec.id)
        finally:
            await self.sampler.close()
        if trace.rejected_rewards:
            warn_of_rejected_reward(self._reward_source)
        for name in overruled_samplers(trace):
            warn_once(f"requests of agents set {name}, but the run's own sampling settings are used.")
        for step in self.sampler.calls.values():
            step.text = self._context.engine.renderer.text(step.response_ids)
        uid = f"{self._uid}{self._part}"
        sampler = self.sampler
        return trace, make_trajectories(trace, sampler.calls, uid, sampler.cut_tokens, sampler.cancelled_tokens)

    def check(self, trace: SessionTrace) -> None:
        """Raise the error of the engine or of the store, if one failed.

        Raises:
            BackendError: the engine has stopped.
            RolloutError: the gateway could not store a call.
        """
        if self.sampler.backend_error is not None:
            raise self.sampler.backend_error
        if trace.ending == "failed":
            raise RolloutError(
                "store-failed",
                "The gateway could not store a call of this rollout.",
                "Check the disk. Check that no program deleted or replaced the store (rllm.sdk.store.path). Run again.",
            )

    def _make_spec(self) -> SessionSpec:
        context, processing = self._context, self._gateway.processing
        slug = re.sub(r"[^A-Za-z0-9._~-]", "-", f"{self._uid}{self._part}")[:LONGEST_SLUG]
        return SessionSpec(
            # The same uid occurs again in later epochs and runs, so add a random part.
            id=f"{slug}~{secrets.token_hex(6)}",
            run=self._gateway.run,
            rollout=self._uid,
            retry=context.rollout,
            metadata=without_facts(self._task),
            label="train" if context.label == "train" else "val",
            max_tokens=context.max_response_length,
            max_prompt_length=min(context.max_prompt_length, context.engine.max_context - 1),
            max_calls=context.max_steps,
            temperature=context.sampling.temperature,
            accumulate_reasoning=context.accumulate_reasoning,
            group_key=processing.groupby_key,
            name_key=processing.traj_name_key,
            unsupported=self._unsupported,
            keeps_messages=context.score is not None,
            reward_source=self._reward_source,
        )
