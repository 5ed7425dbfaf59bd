"""`rllm prefer`: runs on two backends, the record, resume after a kill, and settings that cannot work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed, check_values

from .test_resume import metrics, wait_for_steps, weights

RUNS = Path("runs", "rllm-prefer")
FILES = ("--data", "train.jsonl", "--val-data", "val.jsonl")
WORDS = ("prefer", *FILES, "data.train_batch_size=8", "training.learning_rate=0.003")
NAME = "rllm.trainer.experiment_name"


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> None:
    """Pairs of a right and a wrong sum, and the same completions with labels."""
    pairs = [
        {
            "prompt": [{"role": "user", "content": f"{number} plus 1 is"}],
            "chosen": [{"role": "assistant", "content": str(number + 1)}],
            "rejected": [{"role": "assistant", "content": f"not {number + 1}"}],
        }
        for number in range(24)
    ]
    labels = [
        {"prompt": f"{number} plus 1 is", "completion": f" {number + 1 + number % 2}", "label": number % 2 == 0}
        for number in range(24)
    ]
    for name, rows in (("train", pairs), ("val", pairs[::6]), ("labels", labels)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def values(run: Path, name: str) -> list[float]:
    return [line[name] for line in metrics(run) if name in line]


@pytest.mark.long
@pytest.mark.usefixtures("with_view")
@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_run_prefers_chosen_completions(loss: str, forked_rllm: Any, tmp_path: Path) -> None:
    done = forked_rllm(*WORDS, "--loss", loss, "rllm.trainer.total_epochs=4", "rllm.record=tokens")
    assert done.returncode == 0, done.stderr
    run = tmp_path / RUNS / "default"
    assert values(run, "preference/loss")[-1] < 0.9 * values(run, "preference/loss")[0]
    assert values(run, "val/val/accuracy")[-1] == 1
    assert values(run, "val/val/margin")[-1] > 0
    assert not {name for line in metrics(run) for name in line if name.startswith(("staleness", "reward"))}
    checked = forked_rllm("record", "check", str(run))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    check_values(checked.stdout, "12 optimizer steps of 12 steps")
    uid = forked_rllm("why", str(run), "11").stdout.splitlines()[1].split()[0]
    check_values(forked_rllm("why", str(run), "11", uid).stdout, f"estimator: {loss}", "trained in step 11")


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("--data", "labels.jsonl", "--loss", "kto")], ids=["dpo", "kto"])
def test_loss_is_equal_on_tinker(words: tuple[str, ...], forked_rllm: Any, tmp_path: Path) -> None:
    terms = (*words, "rllm.trainer.total_batches=2", "rllm.trainer.test_freq=-1", "--model", "tiny")
    for backend in (("--backend", "local", "model.lora_rank=8"), ("--backend", "tinker", "tinker_base_url=local")):
        data = ("--val-data", "labels.jsonl") if words else ()
        done = forked_rllm(*WORDS, *data, *terms, *backend, f"{NAME}={backend[1]}")
        assert done.returncode == 0, done.stderr
    local, tinker = (values(tmp_path / RUNS / name, "preference/loss") for name in ("local", "tinker"))
    # New LoRA weights change nothing, so both backends start at the reference model.
    assert tinker[0] == pytest.approx(local[0], rel=0, abs=1e-6)
    assert tinker[1] != tinker[0]
    assert values(tmp_path / RUNS / "tinker", "actor/grad_norm")[0] > 0


@pytest.mark.long
def test_killed_run_ends_as_if_uninterrupted(start_forked_rllm: Any, forked_rllm: Any, tmp_path: Path) -> None:
    words = (*WORDS, "--beta", "0.3", "rllm.trainer.total_epochs=5", "rllm.trainer.save_freq=5")
    reference = forked_rllm(*words, f"{NAME}=uninterrupted")
    assert reference.returncode == 0, reference.stderr
    process, runs = start_forked_rllm(*words), tmp_path / RUNS
    wait_for_steps(runs / "default", 6, process)
    process.kill()
    process.communicate(timeout=200)
    resumed = forked_rllm("prefer", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert weights(runs / "default") == weights(runs / "uninterrupted")
    assert metrics(runs / "default") == metrics(runs / "uninterrupted")


@pytest.mark.parametrize(
    ("words", "code", "value"),
    [
        (("training.num_minibatches=2",), "not-for-preferences", "num_minibatches"),
        (("training.num_epochs=2",), "not-for-preferences", "num_epochs"),
        (("rllm.algorithm.loss_fn=ppo",), "not-for-preferences", "ppo"),
        (("rllm.algorithm.loss_map.completion=ppo",), "not-for-preferences", "loss_map"),
        (("rllm.algorithm.loss_agg_mode=token-mean",), "not-for-preferences", "token-mean"),
        (("rllm.algorithm.kl_beta=0.1",), "not-for-examples", "kl_beta"),
        (("rllm.rollout.n=4",), "unused-key", "rllm.rollout.n"),
        (("--beta", "0"), "wrong-value", "beta"),
        (("--loss", "kto", "data.train_batch_size=1"), "too-few-tasks", "train_batch_size"),
        (("--data", "labels.jsonl"), "bad-example", "'label'"),
        (("rllm.pipeline.stages=null",), "not-for-preferences", "rllm.pipeline"),
        (
            ("rllm.pipeline.stages=[examples,group,build_batch,prefer,update,log]",),
            "stage-input-missing",
            "'preferences'",
        ),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_errors(rllm_here: Any, words: tuple[str, ...], code: str, value: str) -> None:
    done = rllm_here(*WORDS, "--dry-run", *words)
    assert done.returncode != 0
    check_printed(done.stderr, code, value)


def test_run_without_data_is_an_error(rllm_here: Any) -> None:
    check_printed(rllm_here("prefer", "--dry-run").stderr, "no-training-tasks", "--data")
