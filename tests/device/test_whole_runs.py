"""Whole runs on a simulated accelerator, where tensors of two devices cannot be mixed, equal runs on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tinker_in_process import tiny_server

from rllm.cli.main import main

pytestmark = pytest.mark.long
TRAIN = ("train", "guess", "rllm.rollout.n=4", "data.train_batch_size=8")
QUIET = (
    "rllm.trainer.val_before_train=false",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.logger=[]",
    "training.learning_rate=0.003",
)
CHECKPOINT = "checkpoints/latest/backend/model/model.safetensors"
ADAPTER = "checkpoints/latest/backend/model/adapter_model.safetensors"
KINDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "full weights": (TRAIN,),
    "reference": ((*TRAIN, "rllm.algorithm.kl_beta=0.1", "rllm.algorithm.entropy.coeff=0.01"),),
    "LoRA": ((*TRAIN, "model.lora_rank=4", "rllm.algorithm.kl_beta=0.1"),),
    "critic": ((*TRAIN, "--estimator", "gae"),),
    "whole distributions": ((*TRAIN, "--estimator", "otb"),),
    "observations": ((*TRAIN, "--objective", "echo", "data.max_response_length=2"),),
    "recomputed layers": ((*TRAIN, "training.gradient_checkpointing=true"),),
    "small micro-batches": ((*TRAIN, "training.max_tokens_per_microbatch=40", "training.num_minibatches=2"),),
    "truncated sampling": ((*TRAIN, "sampling.train.top_p=0.9", "sampling.train.top_k=40"),),
    "rejected tokens": ((*TRAIN, "rllm.algorithm.rollout_correction.reject={seq_mean_k1: [0.8, 1.25]}"),),
    "asynchronous": ((*TRAIN, "rllm.async_training.enable=true", "rllm.async_training.staleness_threshold=1"),),
    "one process": (
        (
            *TRAIN,
            "rllm.async_training.enable=true",
            "rllm.async_training.staleness_threshold=1",
            "local.training_process=false",
        ),
    ),
    "teacher": ((*TRAIN, "--objective", "opd", "--teacher", "teacher"),),
    "distributions of a teacher": ((*TRAIN, "--objective", "gkd", "--teacher", "teacher"),),
    "resumed": (
        (*TRAIN, "rllm.trainer.total_batches=1"),
        (*TRAIN, "--resume"),
    ),
    "fine-tuning": (("sft", "--data", "chats.jsonl", "--model", "tiny"),),
    "preferences": (("prefer", "--data", "pairs.jsonl", "--model", "tiny"),),
}


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.fixture
def data(tmp_path: Path) -> None:
    """Write rows for `rllm sft` and `rllm prefer`."""
    rows = [(_message("user", f"{number} plus 2 is"), _message("assistant", str(number + 2))) for number in range(6)]
    chats = [{"messages": list(row)} for row in rows]
    pairs = [{"prompt": [user], "chosen": [good], "rejected": [_message("assistant", "8")]} for user, good in rows]
    for name, lines in (("chats", chats), ("pairs", pairs)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _run(kind: str, device: str) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Return the last checkpoint's weights, and the metrics of each step."""
    for number, command in enumerate(KINDS[kind]):
        settings = () if number else QUIET
        name = (f"rllm.trainer.experiment_name={device}", f"model.device={device}", "rllm.trainer.total_batches=2")
        assert main([*command, *settings, *(each for each in name if each.partition("=")[0] not in str(command))]) == 0
    (run,) = Path("runs").glob(f"*/{device}")
    weights = load_file(run / (ADAPTER if kind == "LoRA" else CHECKPOINT))
    return weights, [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_run_on_a_device_equals_the_cpu(kind: str, pretend: str, data: None) -> None:
    if "teacher" in str(KINDS[kind]):
        save_teacher()
    (expected, metrics), (found, found_metrics) = (_run(kind, device) for device in ("cpu", pretend))
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert (found[name] - weights).norm() <= 1e-4 * weights.norm(), name
    assert_same_steps(found_metrics, metrics)


def assert_same_steps(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    """Compare the metrics of the updates of at least two steps, up to rounding."""
    assert len(found) == len(expected) > 1
    for found_step, step in zip(found, expected, strict=True):
        assert found_step.keys() == step.keys()
        for name in step:
            if name.startswith("actor/"):
                assert found_step[name] == pytest.approx(step[name], rel=1e-3, abs=1e-5), name


def save_teacher() -> None:
    """Save a tiny model with other weights in the directory `teacher`."""
    from rllm_local import tiny

    tokenizer = tiny.build_tokenizer()
    tiny.build_model(len(tokenizer), 7).save_pretrained("teacher")
    tokenizer.save_pretrained("teacher")


def _train_through_tinker(device: str, directory: Path) -> list[dict[str, float]]:
    """Return the metrics of a run on a Tinker server whose model is on the device."""
    with tiny_server(directory / "checkpoints", device=device) as server:
        backend = (
            "--backend",
            "tinker",
            "--model",
            "tiny",
            f"tinker_base_url={server.url}",
            "rllm.trainer.total_batches=2",
        )
        name = f"rllm.trainer.experiment_name={device}"
        assert main([*TRAIN, *(each for each in QUIET if "learning" not in each), *backend, name]) == 0
    lines = Path(f"runs/rllm-training/{device}/metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_tinker_server_on_a_device_equals_the_cpu(
    pretend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    found, expected = (_train_through_tinker(device, tmp_path / device) for device in (pretend, "cpu"))
    assert_same_steps(found, expected)
