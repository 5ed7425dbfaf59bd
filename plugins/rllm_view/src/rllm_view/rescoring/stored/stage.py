"""The stage `stored`: uses stored rollouts for the tasks of a step instead of generating new rollouts."""

from __future__ import annotations

import numpy as np

from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.renderer import Renderer
from rllm_core.contracts.stage_context import StageContext
from rllm_core.contracts.train_step import TrainStep
from rllm_core.data.types import Episode, Task
from rllm_core.errors import ConfigError
from rllm_core.pipeline import episode_metrics
from rllm_record.steps.rows import Sampler
from rllm_view.rescoring.stored.task import StoredTask, require_tokenizer


class BringStored:
    """All stored rollouts at every task of the round, each time it comes round."""

    def __init__(self, context: StageContext, params: NoParams) -> None:
        self._temperature = context.config.sampling.train.temperature
        self._fitting: set[Sampler] = set()

    async def __call__(self, step: TrainStep) -> None:
        step.episodes = [episode for task in step.tasks for episode in self._episodes(task, step.renderer)]
        step.generated += step.episodes
        step.metrics |= episode_metrics(*step.generated_by_batch)
        if not step.episodes:
            step.skip("nothing_stored")

    def _episodes(self, task: Task, renderer: Renderer | None) -> list[Episode]:
        """Raises ConfigError: the task is not stored, or its rollouts cannot be trained on here."""
        if not isinstance(task, StoredTask):
            raise ConfigError(
                "no-stored-rollout",
                f"Stage stored brings stored rollouts, and task {task.id!r} has none.",
                "Set data.train_dataset={name: stored, path: FOLDER}; `--stored FOLDER` sets both.",
            )
        for sampler in {rollout.sampler for rollout in task.rollouts} - self._fitting:
            self._require_fitting(sampler, renderer)
            self._fitting.add(sampler)
        episodes = task.episodes()
        for episode in episodes:
            _require_logprobs(episode)
        return episodes

    def _require_fitting(self, sampler: Sampler, renderer: Renderer | None) -> None:
        require_tokenizer(sampler, renderer)
        stored, here = sampler.temperature, self._temperature
        if stored is not None and stored != here:
            raise ConfigError(
                "temperature-mismatch",
                f"The stored episodes were sampled at temperature {stored:g}, and sampling.train.temperature is "
                f"{here:g}: importance ratios would compare different distributions.",
                f"Set sampling.train.temperature={stored:g}.",
            )


def _require_logprobs(episode: Episode) -> None:
    """A log-prob that is computed later is one of the weights that are trained: its ratio would be 1."""
    for trajectory in episode.trajectories:
        buffer = trajectory.tokens
        unknown = int(np.isnan(buffer.logprobs[buffer.sampled]).sum())
        if unknown:
            raise ConfigError(
                "missing-logprobs",
                f"{unknown} of {int(buffer.sampled.sum())} sampled tokens of trajectory {trajectory.uid!r} are stored "
                "without a log-prob.",
                "Store episodes from an engine that reports log-probs.",
            )
