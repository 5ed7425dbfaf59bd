"""Plugin specs of rllm-local: the backend `local`, the reward `model`, and the teacher `model`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rllm_backend_kit import COMMON_KEYS
from rllm_core.contracts.backend import BackendPlugin, Capabilities, Finding, SharedKey
from rllm_core.contracts.reward import RewardPlugin
from rllm_core.contracts.teacher import TeacherPlugin
from rllm_core.errors import ConfigError
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl

if TYPE_CHECKING:
    from rllm_core.schema.run_config import RunConfig
    from rllm_local.scoring_models import RewardModelParams, TeacherModelParams
    from rllm_local.settings import LocalConfig


def check_training_process(run: RunConfig, settings: LocalConfig) -> None:
    """Raise ConfigError if `training_process` is false in a synchronous run, which has only one process anyway."""
    if not settings.local.training_process and not run.rllm.async_training.staleness:
        raise ConfigError(
            "unused-key",
            "`local.training_process` is false and has no effect, because a synchronous run samples and trains in one "
            "process.",
            "Remove the key, or set rllm.async_training.enable=true and rllm.async_training.staleness_threshold=1.",
        )


requires_api = 1
WAIT_FOR_A_PLACE = 3600.0
"""Seconds that a conversation may wait for the reward model."""


def _examine_gpus() -> Iterable[Finding]:
    from rllm_backend_kit.machine import examine_machine, read_machine

    return examine_machine(read_machine())


def _training_keys() -> frozenset[str]:
    from rllm_local.settings import TrainingSection

    # max_length also limits conversations in evaluation.
    keys = (f"training.{name}" for name in TrainingSection.model_fields if name != "max_length")
    return frozenset({"critic.*", "local.training_process", *keys})


@hookimpl
def rllm_backends() -> Iterable[BackendPlugin[LocalConfig]]:
    yield BackendPlugin(
        name="local",
        summary="This machine: trains and samples with torch, on a CPU or one GPU.",
        load_params=load_from("rllm_local.settings", "LocalConfig"),
        load=load_from("rllm_local.backend", "LocalBackend"),
        check=call_lazily("rllm_local.model_name", "check_model"),
        check_run=check_training_process,
        footprint=call_lazily("rllm_local.footprint", "footprint"),
        early_renderer=call_lazily("rllm_local.early_renderer", "cached_renderer"),
        examine_gpus=_examine_gpus,
        config_keys=COMMON_KEYS | {"rllm.rollout.engine"},
        config_yaml=lambda: Path(__file__).parent / "conf" / "rllm" / "backend" / "local.yaml",
        shared_keys=tuple(
            SharedKey(native=f"training.{name}", rllm=f"rllm.algorithm.{name}", deprecated=False)
            for name in ("lr_schedule", "warmup_steps_ratio")
        ),
        training_keys=_training_keys,
        column_sections={"values": "critic"},
        minibatches_key="training.num_minibatches",
        capabilities=Capabilities(
            custom_losses=True,
            stop_texts=True,
            observations=True,
            targets=True,
            token_trace=True,
            overlap=frozenset({"fixed", "latest"}),
            columns=frozenset({"old_logprobs", "ref_logprobs", "values", "sum_pi_squared", "scores"}),
        ),
    )


@hookimpl
def rllm_rewards() -> Iterable[RewardPlugin[RewardModelParams]]:
    yield RewardPlugin(
        name="model",
        summary="The output of a reward model on this machine, such as `model:./some-reward-model`.",
        load_params=load_from("rllm_local.scoring_models", "RewardModelParams"),
        load=load_from("rllm_local.reward_model", "RewardModel"),
        blocking=False,
        timeout=WAIT_FOR_A_PLACE,
        check=call_lazily("rllm_local.scoring_models", "check_reward_model"),
        sources=call_lazily("rllm_local.scoring_models", "list_reward_weights"),
        family_option="path",
    )


@hookimpl
def rllm_teachers() -> Iterable[TeacherPlugin[TeacherModelParams]]:
    yield TeacherPlugin(
        name="model",
        summary="A second model on this machine, such as `model:./some-hf-directory` or `model:tiny`.",
        load_params=load_from("rllm_local.scoring_models", "TeacherModelParams"),
        load=load_from("rllm_local.teacher", "ModelTeacher"),
        check=call_lazily("rllm_local.scoring_models", "check_teacher"),
        sources=call_lazily("rllm_local.scoring_models", "list_weights"),
        family_option="path",
        distributions=True,
    )
