"""Memory of each GPU in the output of `--dry-run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rllm_core.contracts.backend import Footprint
from rllm_local import tiny
from rllm_verl import footprint as module

ACTOR = "actor_rollout_ref.actor"
MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tiny.build_model(len(tiny.build_tokenizer()), 0).save_pretrained(directory)
    return directory


@pytest.fixture
def estimate(run: Any, model: Path) -> Any:
    def estimated(*words: str, needs: frozenset[str] = frozenset()) -> Footprint | None:
        composed = run("rllm.profile=cpu", f"actor_rollout_ref.model.path={model}", *words)
        return module.footprint(composed.backend_config, composed.config, needs)

    return estimated


def sizes(found: Footprint) -> dict[str, float]:
    return {name: float(text.split()[0]) for name, text in found.rows}


def test_weights_gradients_and_moments_are_dealt_to_all_gpus(estimate: Any, model: Path) -> None:
    count = tiny.build_model(len(tiny.build_tokenizer()), 0).num_parameters()
    one = sizes(estimate())
    assert one["weights"] == pytest.approx(4 * count / MIB, abs=0.06)
    assert one["together, without activations"] == pytest.approx(16 * count / MIB, abs=0.06)
    two = sizes(estimate("trainer.n_gpus_per_node=2"))
    assert two["together, without activations"] == pytest.approx(8 * count / MIB, abs=0.06)


def test_a_reference_model_is_counted_and_an_adapter_is_small(estimate: Any) -> None:
    needs = frozenset({"ref_logprobs"})
    assert "reference model" in sizes(estimate(needs=needs))
    lora = ("actor_rollout_ref.model.lora_rank=2", "actor_rollout_ref.model.lora.merge=true")
    small = sizes(estimate(*lora, needs=needs))
    assert "reference model" not in small
    assert small["AdamW's moments"] < sizes(estimate())["AdamW's moments"] / 5


def test_what_does_not_fit_names_the_keys_that_help(estimate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_gpu", lambda: 1 << 20)
    (warning,) = estimate().warnings
    assert "training needs 1." in warning
    assert "actor_rollout_ref.model.lora_rank" in warning


@pytest.mark.long
def test_training_memory_must_fit_next_to_vllm(estimate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    count = tiny.build_model(len(tiny.build_tokenizer()), 0).num_parameters()
    monkeypatch.setattr(module, "_gpu", lambda: 17 * count)
    words = ("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.gpu_memory_utilization=0.5")
    (warning,) = estimate(*words).warnings
    assert "while vLLM samples" in warning
    assert estimate(*words, f"{ACTOR}.fsdp_config.optimizer_offload=true").warnings == ()
    assert estimate(*words, "actor_rollout_ref.rollout.nnodes=1").warnings == (), "it has other GPUs"


def test_nothing_is_said_of_tiny_and_of_models_that_are_not_here_only_that(estimate: Any) -> None:
    assert estimate("actor_rollout_ref.model.path=tiny") is None
    assert "no/such-model" in estimate("actor_rollout_ref.model.path=no/such-model").warnings[0]
