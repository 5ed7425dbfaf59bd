"""The samplers that come with the program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rllm_core.contracts.plugin import Params
from rllm_core.contracts.sampler import SamplerPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1

Share = Annotated[float, Field(ge=0, le=1)]


class PassRateParams(Params):
    """Options of samplers that store pass rates of tasks."""

    memory: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="Weight of a task's earlier rollouts when new results arrive. 0: only the latest results apply.",
    )
    key: str | None = Field(
        None,
        min_length=1,
        description="Column of the tasks' data, such as `level`. Tasks with the same value share one pass rate. "
        "null: each task has its own.",
    )


class DifficultyParams(PassRateParams):
    easy: Share = Field(0.9, description="Tasks with at least this pass rate are in the pool `easy`.")
    hard: Share = Field(0.1, description="Tasks with at most this pass rate are in the pool `hard`.")
    easy_share: Share = Field(0.1, description="Share of a batch that comes from the pool `easy`.")
    hard_share: Share = Field(0.1, description="Share of a batch that comes from the pool `hard`.")

    @model_validator(mode="after")
    def _check_fit(self) -> Self:
        if self.hard >= self.easy:
            raise ValueError(f"hard ({self.hard}) must be below easy ({self.easy})")
        if self.easy_share + self.hard_share > 1:
            raise ValueError(f"easy_share ({self.easy_share}) and hard_share ({self.hard_share}) exceed 1 together")
        return self


class ThompsonParams(PassRateParams):
    target: Share = Field(0.5, description="Preferred pass rate. At 0.5, rollouts of a task differ the most.")


class DropSolvedParams(Params):
    bound: float = Field(0.9, gt=0, le=1, description="Drop a task when its pass rate in one batch is at least this.")


class LevelsParams(Params):
    key: str = Field("level", min_length=1, description="Column of the tasks' data that contains the level, a number.")
    solved: float = Field(0.9, gt=0, le=1, description="Pass rate of the highest open level that opens the next level.")
    tasks: int = Field(8, gt=0, description="Number of tasks at the highest open level whose results decide.")
    window: int = Field(4, gt=0, description="Number of open levels. Levels further below are closed.")


class MixedSamplerParams(Params):
    ratios: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Ratios between data sources, such as {math: 3, code: 1}. A source without an entry has the ratio "
        "of its environment, or 1.",
    )


@hookimpl
def rllm_samplers() -> Iterable[SamplerPlugin[Any]]:
    yield SamplerPlugin(
        name="uniform",
        summary="Each task once per epoch, in a new random order.",
        load=load_from("rllm.builtin.samplers.passes", "Uniform"),
    )
    yield SamplerPlugin(
        name="difficulty",
        summary="Mostly tasks of medium difficulty, with fixed shares of easy and hard tasks.",
        params=DifficultyParams,
        load=load_from("rllm.builtin.samplers.pass_rates", "Difficulty"),
    )
    yield SamplerPlugin(
        name="thompson",
        summary="Tasks that are probably half solved, by a Beta posterior of each pass rate.",
        params=ThompsonParams,
        load=load_from("rllm.builtin.samplers.pass_rates", "Thompson"),
    )
    yield SamplerPlugin(
        name="drop_solved",
        summary="As uniform, without the tasks that were solved.",
        params=DropSolvedParams,
        load=load_from("rllm.builtin.samplers.passes", "DropSolved"),
    )
    yield SamplerPlugin(
        name="levels",
        summary="A few levels of a generator. When the highest is solved, the next level opens.",
        params=LevelsParams,
        load=load_from("rllm.builtin.samplers.passes", "Levels"),
    )
    yield SamplerPlugin(
        name="mixed",
        summary="Fixed ratios between the data sources of the tasks, such as several environments.",
        params=MixedSamplerParams,
        load=load_from("rllm.builtin.samplers.passes", "MixedSampler"),
    )
