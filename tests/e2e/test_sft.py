"""`rllm sft`: one run on each backend, the record, stored episodes, and settings without effect."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed, check_values

pytestmark = pytest.mark.long

RUNS = Path("runs", "rllm-sft")
FILES = ("--data", "train.jsonl", "--val-data", "val.jsonl")
WORDS = ("sft", *FILES, "data.train_batch_size=8", "training.learning_rate=0.01")


def conversations(numbers: Sequence[int]) -> str:
    """Lines with two additions each."""
    return "\n".join(
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": f"{number} plus 1 is"},
                    {"role": "assistant", "content": str(number + 1)},
                    {"role": "user", "content": f"{number} plus 2 is"},
                    {"role": "assistant", "content": str(number + 2)},
                ]
            }
        )
        for number in numbers
    )


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(conversations(range(24)))
    (tmp_path / "val.jsonl").write_text(conversations(range(0, 24, 6)))


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(run: Path, name: str) -> list[float]:
    return [line[name] for line in metrics(run) if name in line]


@pytest.mark.usefixtures("with_view")
def test_run_learns_validates_and_its_record_is_checked(forked_rllm: Any, tmp_path: Path) -> None:
    done = forked_rllm(*WORDS, "rllm.trainer.total_epochs=10", "rllm.record=tokens")
    assert done.returncode == 0, done.stderr
    run = tmp_path / RUNS / "default"
    check_values(done.stdout, "rllm eval ENV --model", "rllm train ENV --model", "rllm export", "rllm view")
    assert losses(run, "actor/loss")[-1] < 0.5 * losses(run, "actor/loss")[0]
    assert losses(run, "val/val/loss")[-1] < losses(run, "val/val/loss")[0]
    assert not {name for line in metrics(run) for name in line if name.startswith(("staleness", "advantage", "reward"))}
    checked = forked_rllm("record", "check", str(run))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    check_values(checked.stdout, "30 optimizer steps of 30 steps")
    uid = forked_rllm("why", str(run), "29").stdout.splitlines()[1].split()[0]
    check_values(forked_rllm("why", str(run), "29", uid).stdout, "supervise", "trained in step 29")


def test_loss_is_equal_on_tinker(forked_rllm: Any, tmp_path: Path) -> None:
    terms = ("rllm.trainer.total_batches=2", "rllm.record=tokens", "--model", "tiny")
    for words in (("--backend", "local"), ("--backend", "tinker", "tinker_base_url=local")):
        done = forked_rllm(*WORDS, *words, *terms, f"rllm.trainer.experiment_name={words[1]}")
        assert done.returncode == 0, done.stderr
    local, tinker = tmp_path / RUNS / "local", tmp_path / RUNS / "tinker"
    # New LoRA weights change nothing, so both backends start from the same model.
    for name in ("actor/loss", "val/val/loss"):
        assert losses(tinker, name)[0] == pytest.approx(losses(local, name)[0], rel=0, abs=1e-6)
        assert losses(tinker, name)[1] < losses(tinker, name)[0]
    assert forked_rllm("record", "check", str(tinker)).returncode == 0


@pytest.mark.usefixtures("with_view")
def test_good_stored_episodes_are_imitated(forked_rllm: Callable[..., Any], tmp_path: Path) -> None:
    quick = ("rllm.trainer.total_batches=2", "rllm.trainer.test_freq=-1", "rllm.trainer.val_before_train=false")
    trained = forked_rllm("train", "guess", *quick, "rllm.record=tokens", "data.train_batch_size=16")
    assert trained.returncode == 0, trained.stderr
    stored = str(tmp_path / "runs" / "rllm-training" / "default")
    done = forked_rllm(
        "sft", "--stored", stored, "--min-reward", "0.5", "rllm.record=tokens", "rllm.trainer.total_epochs=1"
    )
    assert done.returncode == 0, done.stderr
    counts = losses(tmp_path / RUNS / "default", "batch/examples")
    assert 0 < sum(counts) < 2 * 16 * 8
    nothing = forked_rllm("sft", "--stored", stored, "--min-reward", "100", "--overwrite")
    check_printed(nothing.stderr, "no-episodes", "min_reward")


@pytest.mark.parametrize(
    ("words", "code", "value"),
    [
        (("rllm.algorithm.kl_beta=0.1",), "not-for-examples", "kl_beta"),
        (("sampling.train.temperature=0.5",), "unused-key", "temperature"),
        (("rllm.algorithm.loss_fn=ppo",), "loss-needs-rollouts", "ppo"),
        (("rllm.rollout.n=4",), "unused-key", "rllm.rollout.n"),
        (("rllm.algorithm.adv_estimator=rloo",), "unused-key", "adv_estimator"),
        (("rllm.pipeline.stages=null",), "not-for-examples", "rllm.pipeline"),
        (("--min-reward", "1"), "usage-error", "--stored"),
    ],
    ids=str,
)
def test_settings_without_effect_are_errors(rllm_here: Any, words: tuple[str, ...], code: str, value: str) -> None:
    done = rllm_here(*WORDS, "--dry-run", *words)
    assert done.returncode != 0
    check_printed(done.stderr, code, value)


def test_data_that_cannot_be_trained_on_is_an_error(rllm_here: Any, tmp_path: Path) -> None:
    check_printed(rllm_here("sft", "--dry-run").stderr, "no-training-tasks", "--data")
    (tmp_path / "train.jsonl").write_text('{"question": "1 plus 1"}')
    check_printed(rllm_here(*WORDS, "--dry-run").stderr, "bad-example", "'question'")
