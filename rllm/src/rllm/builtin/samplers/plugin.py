"""The samplers that come with the program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm.builtin.samplers.options import (
    DifficultyParams,
    DropSolvedParams,
    LevelsParams,
    MixedParams,
    ThompsonParams,
)
from rllm_core.contracts.sampler import SamplerPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_samplers() -> Iterable[SamplerPlugin[Any]]:
    yield SamplerPlugin(
        name="uniform",
        summary="Each task once per epoch, in a new random order.",
        load=load_from("rllm.builtin.samplers.uniform", "Uniform"),
    )
    yield SamplerPlugin(
        name="difficulty",
        summary="Mostly tasks of medium difficulty, with fixed shares of easy and hard tasks.",
        params=DifficultyParams,
        load=load_from("rllm.builtin.samplers.difficulty", "Difficulty"),
    )
    yield SamplerPlugin(
        name="thompson",
        summary="Tasks that are probably half solved, by a Beta posterior of each pass rate.",
        params=ThompsonParams,
        load=load_from("rllm.builtin.samplers.thompson", "Thompson"),
    )
    yield SamplerPlugin(
        name="drop_solved",
        summary="As uniform, without the tasks that were solved.",
        params=DropSolvedParams,
        load=load_from("rllm.builtin.samplers.drop_solved", "DropSolved"),
    )
    yield SamplerPlugin(
        name="levels",
        summary="A few levels of a generator. When the highest is solved, the next level opens.",
        params=LevelsParams,
        load=load_from("rllm.builtin.samplers.levels", "Levels"),
    )
    yield SamplerPlugin(
        name="mixed",
        summary="Fixed ratios between the data sources of the tasks, such as several environments.",
        params=MixedParams,
        load=load_from("rllm.builtin.samplers.mixed", "Mixed"),
    )
