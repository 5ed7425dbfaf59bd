"""Plugin specs of rllm-tinker: the backend `tinker`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rllm_backend_kit import COMMON_KEYS
from rllm_core.contracts.backend import BackendPlugin, Capabilities, DerivedKey, SharedKey
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl

if TYPE_CHECKING:
    from rllm_tinker.settings import TinkerConfig

requires_api = 1


def _model_of(base_url: str | None) -> str:
    from rllm_tinker.settings import DEFAULT_MODEL, LOCAL

    return "tiny" if base_url == LOCAL else DEFAULT_MODEL


def _training_keys() -> frozenset[str]:
    from rllm_tinker.settings import TrainingSection

    # The other three keys select the weights and limit conversations, so evaluation also uses them.
    shared = {"max_length", "resume_from_tinker_id", "default_local_dir"}
    return frozenset(f"training.{name}" for name in TrainingSection.model_fields.keys() - shared)


def _same(native: str, rllm: str) -> SharedKey:
    return SharedKey(native=native, rllm=rllm, deprecated=False)


@hookimpl
def rllm_backends() -> Iterable[BackendPlugin[TinkerConfig]]:
    yield BackendPlugin(
        name="tinker",
        summary="The Tinker API: trains LoRA models on a remote service, or on a local server of the same protocol.",
        load_params=load_from("rllm_tinker.settings", "TinkerConfig"),
        load=load_from("rllm_tinker.backend", "TinkerBackend"),
        fetch_model=call_lazily("rllm_tinker.state", "fetch_model"),
        check=call_lazily("rllm_tinker.checks", "check_config"),
        check_run=call_lazily("rllm_tinker.checks", "check_run"),
        config_keys=COMMON_KEYS,
        config_yaml=lambda: Path(__file__).parent / "conf" / "rllm" / "backend" / "tinker.yaml",
        shared_keys=(
            _same("training.group_size", "rllm.rollout.n"),
            _same("validation.group_size", "rllm.rollout.n_val"),
            _same("training.lr_schedule", "rllm.algorithm.lr_schedule"),
            _same("training.warmup_steps_ratio", "rllm.algorithm.warmup_steps_ratio"),
            _same("rollout_engine.disable_thinking", "rllm.disable_thinking"),
            _same("rollout_engine.accumulate_reasoning", "rllm.accumulate_reasoning"),
        ),
        training_keys=_training_keys,
        derived_keys=(DerivedKey(native="model.name", of=("tinker_base_url",), derive=_model_of),),
        minibatches_key="training.num_minibatches",
        capabilities=Capabilities(
            losses=frozenset({"cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo"}),
            custom_losses=True,
            columns=frozenset({"old_logprobs", "ref_logprobs"}),
            overlap=frozenset({"fixed", "latest"}),
            token_trace=True,
            observations=True,
        ),
    )
