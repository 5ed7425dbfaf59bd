"""The program's plugins: environments, rewards, samplers, sandboxes, teachers, workflows, trackers, `endpoint`, …"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import rllm.distillation.plugin
import rllm.echo.plugin
import rllm.endpoint.plugin
import rllm.environments.plugin
import rllm.preferences.plugin
import rllm.samplers.plugin
import rllm.sandboxes.plugin
import rllm.supervised.plugin
import rllm.tasks.plugin
import rllm.tools.plugin
import rllm.trackers.plugin
from rllm_core.contracts.backend import BackendPlugin
from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.objective import ObjectivePlugin
from rllm_core.contracts.reward import RewardPlugin
from rllm_core.contracts.sampler import SamplerPlugin
from rllm_core.contracts.sandbox import SandboxPlugin
from rllm_core.contracts.stage import StagePlugin
from rllm_core.contracts.teacher import TeacherPlugin
from rllm_core.contracts.tracker import TrackerPlugin
from rllm_core.contracts.workflow import WorkflowPlugin
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_backends() -> Iterable[BackendPlugin[Any]]:
    return rllm.endpoint.plugin.backends()


@hookimpl
def rllm_datasets() -> Iterable[DatasetPlugin[Any]]:
    return rllm.tasks.plugin.datasets()


@hookimpl
def rllm_environments() -> Iterator[EnvironmentPlugin[Any]]:
    yield from rllm.environments.plugin.environments()
    yield from rllm.tasks.plugin.environments()
    yield from rllm.tools.plugin.environments()


@hookimpl
def rllm_losses() -> Iterable[LossPlugin[Any]]:
    return rllm.supervised.plugin.losses()


@hookimpl
def rllm_objectives() -> Iterator[ObjectivePlugin]:
    yield from rllm.supervised.plugin.objectives()
    yield from rllm.preferences.plugin.objectives()
    yield from rllm.distillation.plugin.objectives()
    yield from rllm.echo.plugin.objectives()


@hookimpl
def rllm_rewards() -> Iterable[RewardPlugin[Any]]:
    return rllm.tasks.plugin.rewards()


@hookimpl
def rllm_samplers() -> Iterable[SamplerPlugin[Any]]:
    return rllm.samplers.plugin.samplers()


@hookimpl
def rllm_sandboxes() -> Iterable[SandboxPlugin[Any]]:
    return rllm.sandboxes.plugin.sandboxes()


@hookimpl
def rllm_stages() -> Iterator[StagePlugin[Any]]:
    yield from rllm.supervised.plugin.stages()
    yield from rllm.preferences.plugin.stages()
    yield from rllm.distillation.plugin.stages()
    yield from rllm.echo.plugin.stages()


@hookimpl
def rllm_teachers() -> Iterable[TeacherPlugin[Any]]:
    return rllm.distillation.plugin.teachers()


@hookimpl
def rllm_trackers() -> Iterator[TrackerPlugin[Any]]:
    yield TrackerPlugin(
        name="console",
        summary="Progress in the terminal. Plain lines if the output is not a terminal.",
        load=lambda: import_module("rllm.tracking.console").ConsoleTracker,
    )
    yield from rllm.trackers.plugin.trackers()


@hookimpl
def rllm_workflows() -> Iterator[WorkflowPlugin[Any]]:
    yield from rllm.environments.plugin.workflows()
    yield from rllm.tools.plugin.workflows()
