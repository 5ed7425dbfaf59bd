"""Plugin specs of rllm-tinker: the backend `tinker`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rllm_backend_kit import COMMON_KEYS
from rllm_core.contracts.backend import BackendPlugin, Capabilities, DerivedKey, SharedKey
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl
from rllm_tinker.checks import check_config, check_run
from rllm_tinker.settings import DEFAULT_MODEL, LOCAL, TinkerConfig, TrainingSection
from rllm_tinker.state import fetch_model

requires_api = 1


def _model_of(base_url: str | None) -> str:
    return "tiny" if base_url == LOCAL else DEFAULT_MODEL


def _same(native: str, rllm: str) -> SharedKey:
    return SharedKey(native=native, rllm=rllm, deprecated=False)


@hookimpl
def rllm_backends() -> Iterable[BackendPlugin[TinkerConfig]]:
    yield BackendPlugin(
        name="tinker",
        summary="The Tinker API: trains LoRA models on a remote service, or on a local server of the same protocol.",
        params=TinkerConfig,
        load=load_from("rllm_tinker.backend", "TinkerBackend"),
        fetch_model=fetch_model,
        check=check_config,
        check_run=check_run,
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
        # The other three keys select the weights and limit conversations, so evaluation also uses them.
        training_keys=frozenset(f"training.{name}" for name in TrainingSection.model_fields)
        - {"training.max_length", "training.resume_from_tinker_id", "training.default_local_dir"},
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
