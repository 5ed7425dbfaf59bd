"""The contract of pipeline stages."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Coroutine
from typing import Any

from rllm_core.contracts.stage import Stage, StageContext, StagePlugin
from rllm_core.contracts.train_step import TrainStep
from rllm_core.errors import did_you_mean
from rllm_core.pipeline import GIVEN
from rllm_core.plugins.registry import Registry
from rllm_plugin_kit.fakes import stage_context
from rllm_plugin_kit.plugin import PluginContract
from rllm_plugin_kit.steps import ASPECTS, FIELD_NAMES, WatchedStep, find_changed_aspects, make_step, snapshot

EVERYTHING = frozenset().union(*ASPECTS.values(), *FIELD_NAMES.values())
STEPS = 3


class StageContract(PluginContract[StagePlugin[Any]]):
    """Contract of every stage. The stage runs on fake steps with a fake backend and a fake runner."""

    kind = "stage"

    def context(self) -> StageContext:
        """Return the stage's context. Override it to set different fields: ``return stage_context(config=…)``."""
        return stage_context()

    def prepare(self, step: TrainStep) -> None:
        """Set values of a step that the stage reads in addition to its fields, such as ``step.extras``."""

    def test_declared_reads_are_written_by_some_stage(self) -> None:
        written = GIVEN.union(*(entry.plugin.writes for entry in Registry.load().all("stage")))
        for name in sorted(self.plugin.reads - written):
            raise self.failure(
                f"reads {name!r}, which no installed stage writes",
                f"{did_you_mean(name, written)} Names are those that other stages have in `writes`.",
            )

    def test_only_declared_fields_are_read(self, params: Any) -> None:
        declared = self.plugin.reads | self.plugin.writes
        step = self._run(self._stage(params), self._step(EVERYTHING), "a step with everything in it")
        for field in sorted(step.seen):
            if not FIELD_NAMES[field] & declared:
                raise self.failure(
                    f"looks at step.{field}, which is not among what it reads",
                    f"Add {field!r} to `reads` in its plugin spec, so that the order of stages can be checked.",
                )

    def test_declared_reads_are_sufficient(self, params: Any) -> None:
        self._run(self._stage(params), self._step(self.plugin.reads), "a step with nothing but what it reads")

    def test_empty_step_works(self, params: Any) -> None:
        step = self._step(self.plugin.reads, tasks=0)
        self._run(self._stage(params), step, "a step without tasks, episodes, groups or tokens")

    def test_only_declared_fields_are_changed(self, params: Any) -> None:
        for written in (EVERYTHING, self.plugin.reads):
            step = self._step(written)
            before = snapshot(step)
            self._run(self._stage(params), step, "a filled step")
            if step.asks_for_more:
                return  # The next rollout batch starts the step again.
            for aspect in find_changed_aspects(before, snapshot(step)):
                if not ASPECTS[aspect] & self.plugin.writes:
                    names = " or ".join(repr(name) for name in sorted(ASPECTS[aspect]))
                    raise self.failure(
                        f"changes {aspect} of the step, which is not among what it writes",
                        f"Add {names} to `writes` in its plugin spec, or do not change it."
                        if names
                        else "No stage may; leave notes for other stages in step.extras.",
                    )

    def test_metrics_are_finite(self, params: Any) -> None:
        step = self._run(self._stage(params), self._step(self.plugin.reads), "a filled step")
        for name, value in step.metrics.items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise self.failure(
                    f"gives metric {name!r} the value {value!r}",
                    "Return finite metrics. Omit a metric if it has no value.",
                )

    def test_rollout_stage_has_no_state(self, params: Any) -> None:
        if self.plugin.is_rollout_stage and hasattr(self._stage(params), "state_dict"):
            raise self.failure(
                "is a rollout stage, but keeps state between steps (it has a state_dict)",
                "Remove `is_rollout_stage=True` from its plugin spec: a rollout stage may run before earlier updates.",
            )

    def test_a_resumed_run_continues_exactly(self, params: Any) -> None:
        whole: Any = self._stage(params)
        # A stage without state must not need one.
        has_state = hasattr(whole, "state_dict")
        outcomes, states = [], []
        for number in range(STEPS):
            outcomes.append(_outcome(self._run(whole, self._step(self.plugin.reads, number=number), "a filled step")))
            states.append(self.saved_state(whole) if has_state else None)
        for done, state in enumerate(states, start=1):
            resumed: Any = self._stage(params)
            same = True
            if state is not None:
                resumed.load_state_dict(json.loads(state))
                same = json.loads(self.saved_state(resumed)) == json.loads(state)
            for number in range(done, STEPS):
                step = self._run(resumed, self._step(self.plugin.reads, number=number), "a filled step")
                same = same and _outcome(step) == outcomes[number]
            if not same:
                raise self.failure(
                    f"continues differently when it is resumed after step {done - 1}",
                    "Put all state into state_dict, and restore all of it in load_state_dict.",
                )

    def _step(self, written: frozenset[str], tasks: int = 3, number: int = 0) -> WatchedStep:
        step = make_step(written, tasks, number)
        self.prepare(step)
        return step

    def _stage(self, params: Any) -> Stage:
        stage: Stage = self.make(self.context(), params, called_with="the context of the run and the options")
        return stage

    def _run(self, stage: Stage, step: WatchedStep, case: str) -> WatchedStep:
        step.seen.clear()
        try:
            running = stage(step)
        except Exception as error:
            raise self._run_failure(case, error) from error
        if not isinstance(running, Coroutine):
            raise self.failure("is not a coroutine function", "Write `async def __call__(self, step)`.")
        try:
            asyncio.run(running)
        except Exception as error:
            raise self._run_failure(case, error) from error
        return step

    def _run_failure(self, case: str, error: Exception) -> AssertionError:
        return self.failure(
            f"failed on {case}: {type(error).__name__}: {error}",
            "Declare all fields that it reads. If a step has nothing to process, return without a change.",
        )


def _outcome(step: TrainStep) -> object:
    groups = [group.group_id for group in step.trajectory_groups]
    return dict(step.metrics), step.skip_reason, [episode.id for episode in step.episodes], groups
