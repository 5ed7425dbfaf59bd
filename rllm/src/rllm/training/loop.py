"""TrainingLoop: from the first rollout to the last checkpoint, the same for every backend."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rllm.planning.lengths import Model, measure_lengths
from rllm.planning.plan import RunPlan
from rllm.planning.preflight import load_plugins
from rllm.planning.rendering_check import check_rendering
from rllm.runs.checkpoint import Checkpoint, CheckpointStore
from rllm.runs.episode_log import EpisodeLog
from rllm.runs.run_directory import RunDirectory
from rllm.runs.run_status import record_status
from rllm.tracking.tracker_group import Trackers
from rllm.training.contexts import run_context, stage_context, tracked_run
from rllm.training.observer_states import ObserverStates
from rllm.training.resume_checks import RunIdentity, RunSources, RunTasks
from rllm.training.rollout_batches import RolloutBatches
from rllm.training.setup import create_scorer, open_runner
from rllm.training.step_warnings import GradientWarning, StepWarnings, require_responses
from rllm.training.task_draws import TaskDraws, TaskSchedule
from rllm.training.validation import validate
from rllm_core.contracts.backend import Backend
from rllm_core.contracts.engine import RolloutEngine
from rllm_core.contracts.observer import Observer
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Task
from rllm_core.notices import say
from rllm_core.pipeline.pipeline import Pipeline
from rllm_core.rollout.runner import RolloutRunner

T = TypeVar("T")

OBJECTS_PER_COLLECTION = 10_000
"""Number of new objects after which Python collects garbage during training."""


class _StoppedError(Exception):
    """`stop` came before anything had begun."""


@dataclass(frozen=True)
class _Parts:
    """Objects that exist only during `fit`."""

    backend: Backend
    engine: RolloutEngine
    runner: RolloutRunner
    pipeline: Pipeline
    batches: RolloutBatches
    trackers: Trackers


class TrainingLoop:
    """One run of a plan that `check_to_train` has checked.

    `fit` trains and returns the metrics of the last validation. `stop` makes it end after the current step.
    """

    def __init__(
        self,
        plan: RunPlan,
        directory: RunDirectory,
        *,
        train_tasks: Sequence[Task],
        val_tasks: Sequence[Task],
        observers: Sequence[Observer] = (),
        resume: bool = False,
        warn: Callable[[str], None] = lambda message: print(f"warning: {message}", file=sys.stderr),  # noqa: T201
    ) -> None:
        self.plan = plan
        self.directory = directory
        self._tracked = tracked_run(plan, directory)
        self._settings = plan.config.rllm.trainer
        self._train_tasks, self._val_tasks = train_tasks, val_tasks
        self._resume = resume
        self._warn = warn
        self._schedule = TaskSchedule(train_tasks, plan.max_batch_tasks(len(train_tasks)))
        self._draws = TaskDraws(plan, train_tasks)
        ahead = plan.config.rllm.async_training
        self._identity = RunIdentity(
            self._settings.seed, self._schedule.digest(), ahead.staleness, pins_weights=ahead.pins_weights
        )
        chosen = [entry.registered.load()(entry.params) for entry in plan.observers]
        self._observers: list[Observer] = [*chosen, *observers, StepWarnings(plan.config, warn)]
        if plan.rows is None:
            self._observers.append(GradientWarning(warn))
        self._states = ObserverStates(plan.observers, chosen)
        self._begun_with: dict[int, int] = {}
        """Weight versions at the start of the rollout batches that an earlier start generated, by batch number."""
        logging = plan.config.rllm.episode_logging
        if logging.log_episodes:
            self._observers.append(_episode_log(directory, logging.episode_log_dir))
        self._sources = RunSources(plan.chosen, self._settings.on_changed_source)
        self._run_tasks = RunTasks(plan, train_tasks, val_tasks)
        self._store = CheckpointStore(directory.checkpoints, self._settings.keep_checkpoints)
        self._finished = self._steps_before = 0
        self._weight_version = 0
        self._saved: int | None = None
        self._stop_requested = False
        self._owes_validation = False
        """True if an observer stopped the run before the validation of its last step. A resumed run starts with it."""
        self._interrupt: Callable[[], object] | None = None
        self.has_begun = False
        """True if `fit` has changed the run directory."""
        self.last_validation: dict[str, float] = {}
        self._validated_after: int | None = None  # finished steps at that validation

    @property
    def total_steps(self) -> int:
        if self._settings.total_batches > 0:
            return self._settings.total_batches
        return self._settings.total_epochs * self._schedule.steps_per_epoch

    @property
    def finished_steps(self) -> int:
        return self._finished

    @property
    def num_new_steps(self) -> int:
        """Number of steps since this start. It is smaller than `finished_steps` in a resumed run."""
        return self._finished - self._steps_before

    @property
    def stopped_early(self) -> bool:
        return self._stop_requested and self._finished < self.total_steps

    @property
    def _generates_again(self) -> bool:
        """True if a resumed run repeats unfinished batches exactly. No checkpoint has the weights that generated them,
        so recorded model calls replace new samples."""
        return self._identity.pins_weights and self._states.can_replay

    def _make_backend(self) -> Backend:
        """Return the run's backend, wrapped by the observers."""
        backend: Backend = self.plan.backend.load()()
        for observer in self._observers:
            backend = observer.wrap_backend(backend, self._tracked)
        return backend

    def _around(self, engine: RolloutEngine) -> RolloutEngine:
        """Return the engine that rollouts sample with: the given engine, wrapped by the observers."""
        for observer in self._observers:
            engine = observer.wrap_engine(engine, self._tracked)
        return engine

    def stop(self) -> None:
        """End after the current step, with a checkpoint. While rewards or the backend start, end at once: nothing has
        changed then."""
        self._stop_requested = True
        if self._interrupt is not None:
            self._interrupt()

    def fit(self) -> dict[str, float]:
        """Run `fit_async` for callers without an event loop."""
        return asyncio.run(self.fit_async())

    async def fit_async(self) -> dict[str, float]:
        """Train to the end, or until `stop`. Return the metrics of the last validation."""
        for line in self.plan.warnings:
            self._warn(line)
        load_plugins(self.plan)
        frozen, thresholds = gc.get_freeze_count(), gc.get_threshold()
        backend = self._make_backend()
        trackers = self._trackers = Trackers(self.plan.trackers, self.directory, self._tracked, self._warn)
        try:
            # Before anything starts: the wrong checkpoint is refused in seconds.
            checkpoint = self._find_checkpoint(backend)
            score = await self._run_until_stop(create_scorer(self.plan))
            engine = self._around(await self._run_until_stop(backend.start(run_context(self.plan, self.total_steps))))
            check_rendering(self.plan, engine.renderer, self._train_tasks, self._val_tasks)
            opening = open_runner(self.plan, engine, self.directory.path, score, replaces=self.directory.replaces)
            async with opening as runner:
                pipeline = Pipeline(
                    self.plan.stages,
                    stage_context(
                        self.plan,
                        backend,
                        runner,
                        engine,
                        tasks=len(self._schedule.tasks),
                        log=trackers.log,
                    ),
                    self._notify,
                )
                self._report_lengths(engine)
                self.has_begun = True
                drawn = await self._restore(checkpoint, backend, pipeline)
                batches = RolloutBatches(
                    partial(self._begin_step, engine.renderer),
                    pipeline.generate,
                    ahead=self.plan.batches_ahead,
                    taken=drawn,
                )
                parts = _Parts(backend, engine, runner, pipeline, batches, trackers)
                if self._finished == 0 or self._makes_steps():
                    self.directory.begin(
                        self.plan.composed.build_saved_config(), self.plan.registered(), self.total_steps
                    )
                # What is alive now (modules, model, tasks) stays for the whole run: looking through it at every garbage
                # collection cost 10 to 30 ms of a step of 350 ms.
                gc.collect()
                gc.freeze()
                # Rollouts create many objects that live until their step ends. Python looks through them after each 700
                # new objects. With 10,000, collections take 40% of the time.
                gc.set_threshold(max(thresholds[0], OBJECTS_PER_COLLECTION), *thresholds[1:])
                try:
                    with record_status(self.directory.path, lambda: self.stopped_early):
                        await self._loop(parts)
                finally:
                    await batches.close()
        except _StoppedError:
            return self.last_validation
        finally:
            gc.set_threshold(*thresholds)
            if not frozen:  # Objects that the caller has frozen stay frozen.
                gc.unfreeze()
            trackers.close()
            await backend.close()
        return self.last_validation

    async def _run_until_stop(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Raises _StoppedError when `stop` was called, before or meanwhile."""
        task = asyncio.ensure_future(waiting)
        # From a signal handler or another thread, neither of which wakes the loop by itself.
        self._interrupt = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        if self._stop_requested:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if not self._stop_requested:
                raise
            raise _StoppedError from None
        finally:
            self._interrupt = None

    def _report_lengths(self, engine: RolloutEngine) -> None:
        """Print the lengths of the run's rows in tokens of the loaded model."""
        model = Model(engine.renderer, engine.max_context)
        for lengths in measure_lengths(self.plan, self._train_tasks, self._val_tasks, model):
            say("\n".join(lengths.lines()))

    def _makes_steps(self) -> bool:
        return self._finished < self.total_steps and not self._settings.val_only

    async def _loop(self, parts: _Parts) -> None:
        first = self._finished
        self._notify("on_train_start", self.total_steps, first)
        if first >= self.total_steps and not self._settings.val_only:
            self._warn(f"all {self.total_steps} steps are made already; set rllm.trainer.total_batches to go further")
            await self._validate_last(parts)
        before = self._settings.val_before_train and first == 0 and not self._stop_requested
        if self._owes_validation and not self._must_stop():
            self._owes_validation = False
            await self._validate(parts)
            self._saved = None  # the checkpoint still owes it
        elif self._settings.val_only or before:
            await self._validate(parts)
        if not self._settings.val_only:
            for global_step in range(first, self.total_steps):
                if self._must_stop():
                    break
                await self._train_step(global_step, parts)
                is_due = self._is_due(self._settings.test_freq) or self._is_last()
                if not self._is_last() and not self._stop_requested and self._must_stop():
                    self._owes_validation = is_due
                    break
                if is_due:
                    await self._validate(parts)
                if self._is_due(self._settings.save_freq):
                    await self._save(parts)
            if not self._generates_again:
                await parts.batches.close()
            await self._save(parts)
        self._notify("on_train_end", self._finished)

    def _must_stop(self) -> bool:
        """Return True if the user or an observer stops the run. Print the observer's reason."""
        reasons = [] if self._stop_requested else [observer.stop_reason() for observer in self._observers]
        for reason in filter(None, reasons):
            self._warn(f"the run stops after {self._finished} of {self.total_steps} steps: {reason}")
            self._stop_requested = True
            break
        return self._stop_requested

    async def _train_step(self, global_step: int, parts: _Parts) -> None:
        step = parts.batches.start(self.total_steps - self._finished)
        step.global_step = global_step
        self._begin_epoch(parts.batches)
        self._notify("on_batch_start", step)
        await parts.batches.take()
        step.weight_version = self._weight_version
        first = parts.batches.taken - 1
        await parts.pipeline.train(step, partial(self._next_batch, parts.batches))
        self._draws.observe(range(first, parts.batches.taken), step.generated_by_batch)
        if global_step == 0:
            require_responses(step)
        if step.weight_version != self._weight_version:
            self._weight_version = step.weight_version
            self._notify("on_policy_updated", step)
        self._finished = global_step + 1
        self._notify("on_batch_end", step)
        self._end_epoch(parts.batches)

    async def _next_batch(self, batches: RolloutBatches) -> TrainStep:
        """Return a further rollout batch of the step. It may begin a new epoch."""
        self._end_epoch(batches)
        batches.start(self.total_steps - self._finished)
        self._begin_epoch(batches)
        return await batches.take()

    def _begin_epoch(self, batches: RolloutBatches) -> None:
        """Report the start of an epoch if the next batch is its first one."""
        if batches.taken % self._schedule.steps_per_epoch == 0:
            self._notify("on_epoch_start", self._schedule.epoch_of(batches.taken))

    def _end_epoch(self, batches: RolloutBatches) -> None:
        """Report the end of an epoch if the last batch was its final one."""
        if batches.taken % self._schedule.steps_per_epoch == 0:
            self._notify("on_epoch_end", self._schedule.epoch_of(batches.taken - 1))

    def _begin_step(self, renderer: Renderer, index: int, before: int) -> TrainStep:
        """Create the step for a batch of tasks. `before` is the number of batches to train on before it."""
        tasks, metrics = self._draws.draw(index)
        return TrainStep(
            global_step=self._finished + before,
            epoch=self._schedule.epoch_of(index),
            total_steps=self.total_steps,
            tasks=tasks,
            task_batch=index,
            metrics=metrics,
            renderer=renderer,
            weight_version=self._begun_with.get(index, self._weight_version),
        )

    async def _validate(self, parts: _Parts) -> None:
        # Call every observer, so that a veto of one observer does not hide the validation from the others.
        votes = [observer.on_validation_start(self._finished) for observer in self._observers]
        # Only False is a veto. None is not.
        if not self._val_tasks or any(vote is False for vote in votes):
            return
        if self.plan.rows is None:
            self.last_validation = await validate(parts.runner, self._val_tasks, self.plan.config)
        else:
            self.last_validation = await self.plan.rows.validate(parts.backend, parts.engine, self._val_tasks)
        self._validated_after = self._finished
        # Log with the index of the step before the validation. Before the first step it is -1.
        parts.trackers.log(self._finished - 1, self.last_validation)
        self._notify("on_validation_end", self._finished, self.last_validation)

    async def _validate_last(self, parts: _Parts) -> None:
        """Run the validation after the last step if an earlier start was stopped before this step was the last."""
        before = self._validated_after
        if before == self._finished:
            return
        await self._validate(parts)
        if self._validated_after != before:
            self._saved = None  # the checkpoint has the metrics of an earlier validation

    async def _save(self, parts: _Parts) -> None:
        if self._saved == self._finished:
            return
        begun = await parts.batches.settle() if self._generates_again else []
        state = {
            "finished_steps": self._finished,
            "drawn_task_batches": parts.batches.taken,
            "weight_version": self._weight_version,
            "identity": self._identity.state_dict(),
            "begun_with": [step.weight_version for step in begun],
            "sources": self._sources.state_dict(),
            "stages": parts.pipeline.state_dict(),
            "last_validation": self.last_validation,
            "validated_after": self._validated_after,
            "owes_validation": self._owes_validation,
            "observers": self._states.state_dict(),
            "sampler": self._draws.state_dict(),
        }
        self.directory.sync()
        # Trackers have no state here. This makes them write the steps that a resumed run does not repeat.
        self._trackers.notify("state_dict")
        await self._store.save(self._finished, state, parts.backend.save, self._run_tasks.files())
        self._saved = self._finished
        self._notify("on_checkpoint", self._finished, self._store.oldest_state()["drawn_task_batches"])

    def _find_checkpoint(self, backend: Backend) -> Checkpoint | None:
        """Return the newest usable checkpoint if the run is resumed. None if there is no checkpoint.

        Raises:
            CheckpointError: this run cannot continue from it.
        """
        checkpoint = self._store.latest_usable(self._warn) if self._resume else None
        if checkpoint is None:
            return None
        same_ids = self._identity.has_same_task_ids(checkpoint)
        self._run_tasks.check_same(checkpoint, self._warn, same_ids=same_ids)
        self._identity.check_same(checkpoint)
        self._draws.check_same(checkpoint)
        self._sources.check_same(checkpoint.state["sources"], checkpoint.directory, self._warn)
        backend.check_checkpoint(run_context(self.plan, self.total_steps), checkpoint.backend_directory)
        return checkpoint

    async def _restore(self, checkpoint: Checkpoint | None, backend: Backend, pipeline: Pipeline) -> int:
        """Continue from a checkpoint. A resumed run without a checkpoint starts from the beginning.

        Return the number of task batches drawn so far. It exceeds the number of steps if rejection drew several for
        one step.
        """
        if checkpoint is None:
            if self._resume:
                self._warn(f"{self.directory.path} has no checkpoint yet; starting from the beginning")
                self.directory.forget_after(0)
            return 0
        self._store.point_latest_at(checkpoint.directory)
        await backend.load(checkpoint.backend_directory)
        pipeline.load_state_dict(checkpoint.state["stages"])
        self._states.load_state_dict(checkpoint.state["observers"])
        self._draws.load_state_dict(checkpoint.state["sampler"])
        self._finished = self._steps_before = self._saved = checkpoint.state["finished_steps"]
        self._weight_version = checkpoint.state["weight_version"]
        self.last_validation = checkpoint.state["last_validation"]
        self._validated_after = checkpoint.state.get("validated_after")
        self._owes_validation = checkpoint.state.get("owes_validation", False)
        await backend.sync_weights(self._weight_version)
        self.directory.forget_after(self._finished)
        drawn = int(checkpoint.state["drawn_task_batches"])
        if begun := checkpoint.state["begun_with"]:
            if self._generates_again:
                self._begun_with = dict(enumerate(begun, drawn))
            else:
                self._warn(f"{len(begun)} unfinished rollout batches are generated again, with newer weights")
        return drawn

    def _is_due(self, frequency: int) -> bool:
        return frequency > 0 and self._finished % frequency == 0

    def _is_last(self) -> bool:
        return self._finished == self.total_steps

    def _notify(self, event: str, *arguments: Any) -> None:
        for observer in self._observers:
            getattr(observer, event)(*arguments)
        self._trackers.notify(event, *arguments)


def _episode_log(directory: RunDirectory, elsewhere: str | None) -> EpisodeLog:
    """Return the log in the run directory, or in a directory that the user chose and that other runs may use too."""
    chosen = directory.episodes if elsewhere is None else Path(elsewhere).expanduser()
    if chosen.resolve() == directory.episodes.resolve():
        return EpisodeLog(directory.episodes)
    return EpisodeLog(chosen, directory.path)
