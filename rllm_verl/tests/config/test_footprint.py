"""Memory of each GPU in the output of `--dry-run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rllm_core.contracts.backend import Footprint
from rllm_core.schema.run_config import RunConfig
from rllm_local import tiny
from rllm_verl import gpus as module

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The directory of the model `tiny`, and the number of its weights."""
    directory = tmp_path_factory.mktemp("model")
    built = tiny.build_model(len(tiny.build_tokenizer()), 0)
    built.save_pretrained(directory)
    return directory, built.num_parameters()


@pytest.fixture
def estimate(change: Any, model: tuple[Path, int]) -> Any:
    def estimate(values: dict[str, Any] | None = None, needs: frozenset[str] = frozenset()) -> Footprint | None:
        config = change("cpu", {f"{MODEL}.path": str(model[0])} | (values or {}))
        return module.footprint(config, RunConfig(), needs)

    return estimate


def sizes(found: Footprint) -> dict[str, float]:
    return {name: float(text.split()[0]) for name, text in found.rows}


def test_weights_gradients_and_moments_are_sharded(estimate: Any, model: tuple[Path, int]) -> None:
    one = sizes(estimate())
    assert one["weights"] == pytest.approx(4 * model[1] / MIB, abs=0.06)
    assert one["together, without activations"] == pytest.approx(16 * model[1] / MIB, abs=0.06)
    two = sizes(estimate({"trainer.n_gpus_per_node": 2}))
    assert two["together, without activations"] == pytest.approx(8 * model[1] / MIB, abs=0.06)


def test_reference_model_and_adapter_are_counted(estimate: Any) -> None:
    needs = frozenset({"ref_logprobs"})
    assert "reference model" in sizes(estimate(needs=needs))
    small = sizes(estimate({f"{MODEL}.lora_rank": 2, f"{MODEL}.lora.merge": True}, needs))
    assert "reference model" not in small
    assert small["AdamW's moments"] < sizes(estimate())["AdamW's moments"] / 5


def test_exceeded_memory_warns_with_helpful_keys(estimate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_gpu", lambda: 1 << 20)
    (warning,) = estimate().warnings
    assert "training needs 1." in warning
    assert "actor_rollout_ref.model.lora_rank" in warning


def test_training_memory_must_fit_next_to_vllm(
    estimate: Any, model: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_gpu", lambda: 17 * model[1])
    vllm = {f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.gpu_memory_utilization": 0.5}
    (warning,) = estimate(vllm).warnings
    assert "while vLLM samples" in warning
    assert estimate(vllm | {f"{ACTOR}.fsdp_config.optimizer_offload": True}).warnings == ()
    assert estimate(vllm | {f"{ROLLOUT}.nnodes": 1}).warnings == (), "it has other GPUs"


def test_tiny_and_models_elsewhere_have_no_estimate(estimate: Any) -> None:
    assert estimate({f"{MODEL}.path": "tiny"}) is None
    assert "no/such-model" in estimate({f"{MODEL}.path": "no/such-model"}).warnings[0]


@pytest.mark.parametrize(("nodes", "rows"), [(0, None), (1, ["2"]), (2, ["4"])])
def test_a_plan_lists_servers_with_separate_gpus(estimate: Any, nodes: int, rows: list[str] | None) -> None:
    found = estimate({f"{MODEL}.path": "tiny", f"{ROLLOUT}.nnodes": nodes, f"{ROLLOUT}.n_gpus_per_node": 2})
    assert (found and [value for _, value in found.rows]) == rows
