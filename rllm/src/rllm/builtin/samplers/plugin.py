"""The samplers that come with the program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.sampler import SamplerPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


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
        load_params=load_from("rllm.builtin.samplers.pass_rates", "DifficultyParams"),
        load=load_from("rllm.builtin.samplers.pass_rates", "Difficulty"),
    )
    yield SamplerPlugin(
        name="thompson",
        summary="Tasks that are probably half solved, by a Beta posterior of each pass rate.",
        load_params=load_from("rllm.builtin.samplers.pass_rates", "ThompsonParams"),
        load=load_from("rllm.builtin.samplers.pass_rates", "Thompson"),
    )
    yield SamplerPlugin(
        name="drop_solved",
        summary="As uniform, without the tasks that were solved.",
        load_params=load_from("rllm.builtin.samplers.passes", "DropSolvedParams"),
        load=load_from("rllm.builtin.samplers.passes", "DropSolved"),
    )
    yield SamplerPlugin(
        name="levels",
        summary="A few levels of a generator. When the highest is solved, the next level opens.",
        load_params=load_from("rllm.builtin.samplers.passes", "LevelsParams"),
        load=load_from("rllm.builtin.samplers.passes", "Levels"),
    )
    yield SamplerPlugin(
        name="mixed",
        summary="Fixed ratios between the data sources of the tasks, such as several environments.",
        load_params=load_from("rllm.builtin.samplers.passes", "MixedSamplerParams"),
        load=load_from("rllm.builtin.samplers.passes", "MixedSampler"),
    )
