"""`rllm train --objective opd`: a model learns from a teacher, its record, and settings that cannot work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed, check_values

from .test_resume import metrics, wait_for_steps, weights

OPD = ("train", "question", "--data", "questions.jsonl", "--objective", "opd")
BY_SOURCE = (
    "rllm.teacher={name: by_source, teachers: {other: model:tiny}}",
    "rllm.pipeline.insert=[{stage: distill, after: supervise}]",
)
WHOLE = "rllm.pipeline.replace={topk_kl: {name: topk_kl, k: null}}"
TINKER = ("--backend", "tinker", "tinker_base_url=local")
NAME = "rllm.trainer.experiment_name"
GKD = (*OPD[:5], "gkd")
GKD_OF_SFT = ("sft", "--data", "examples.jsonl", "rllm.pipeline.insert=[{stage: topk_kl, after: supervise}]")
SHORT = ("data.max_response_length=6", "rllm.trainer.test_freq=-1")


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> None:
    """Questions, and examples whose answers are four numbers, each as often as the others."""
    questions = [f"{number} plus 1 is" for number in range(16)]
    examples = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question in questions
        for answer in ("1", "2", "3", "5")
    ]
    (tmp_path / "questions.jsonl").write_text("\n".join(json.dumps({"question": each}) for each in questions))
    (tmp_path / "examples.jsonl").write_text("\n".join(map(json.dumps, examples)))


def divergences(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["distill/kl"] for line in lines if "distill/kl" in line]


@pytest.mark.parametrize(
    ("words", "code", "value"),
    [
        (OPD, "no-teacher", "--teacher"),
        ((*OPD, "--teacher", "./nowhere"), "model-not-loadable", "./nowhere"),
        ((*OPD, "--teacher", "server:nowhere"), "wrong-value", "url"),
        ((*OPD, "--teacher", "questions=model:tiny", "--teacher", "a=./nowhere"), "model-not-loadable", "./nowhere"),
        ((*OPD, "--teacher", "other=model:tiny"), "task-without-teacher", "questions"),
        (("sft", "--data", "examples.jsonl", *BY_SOURCE), "task-without-teacher", "examples"),
        ((*OPD, "--teacher", "nothing"), "unknown-plugin", "nothing"),
        ((*OPD, "--teacher", "model:tiny", "--estimator", "rloo"), "unused-key", "adv_estimator"),
        ((*OPD[:4], "--objective", "other"), "usage-error", "opd"),
        (GKD, "no-teacher", "--teacher"),
        ((*GKD, "--teacher", "policy:a"), "teacher-without-distributions", "policy"),
        ((*GKD, "--teacher", "questions=policy:a"), "teacher-without-distributions", "policy"),
        ((*GKD, "--teacher", "http://a/v1", WHOLE), "teacher-without-vocabulary", "k"),
        ((*GKD, "--teacher", "model:tiny", *TINKER), "backend-without-targets", "tinker"),
        ((*GKD, "--teacher", "model:tiny", "--backend", "verl", "--profile", "cpu"), "backend-without-targets", "verl"),
        (("train", "guess", "--teacher", "model:tiny"), "unused-key", "rllm.teacher"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_errors(rllm_here: Any, words: tuple[str, ...], code: str, value: str) -> None:
    done = rllm_here(*words, "--dry-run")
    assert done.returncode != 0
    check_printed(done.stderr, code, value)


@pytest.mark.long
@pytest.mark.usefixtures("with_view")
def test_policy_that_equals_its_teacher_has_no_gradient(forked_rllm: Any, tmp_path: Path) -> None:
    small = ("rllm.trainer.total_batches=1", "rllm.rollout.n=2", "data.max_response_length=8", "rllm.record=tokens")
    done = forked_rllm(*OPD, "--teacher", "model:tiny", *small)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "rllm-training" / "default"
    assert divergences(run) == [pytest.approx(0, abs=1e-6)]
    checked = forked_rllm("record", "check", str(run))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    uid = forked_rllm("why", str(run), "0").stdout.splitlines()[1].split()[0]
    check_values(forked_rllm("why", str(run), "0", uid).stdout, "distill", "trained in step 0")


@pytest.fixture
def teacher(forked_rllm: Any, tmp_path: Path) -> str:
    """A model that has learned a few steps, so that it differs from the trained model."""
    words = (
        "data.train_batch_size=16",
        "rllm.trainer.total_epochs=1",
        "training.learning_rate=0.01",
        f"{NAME}=teacher",
    )
    done = forked_rllm("sft", "--data", "examples.jsonl", *words)
    assert done.returncode == 0, done.stderr
    return str(tmp_path / "runs" / "rllm-sft" / "teacher" / "checkpoints" / "latest")


@pytest.mark.long
def test_killed_distillation_ends_as_if_uninterrupted(
    teacher: str, start_forked_rllm: Any, forked_rllm: Any, tmp_path: Path
) -> None:
    """Each second task has a different teacher."""
    questions = [{"question": f"{n} plus 1 is", "data_source": ("one", "two")[n % 2]} for n in range(16)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    teachers = ("--teacher", f"one={teacher}", "--teacher", "two=policy:number")
    sizes = ("rllm.trainer.total_batches=12", "rllm.trainer.save_freq=4", "rllm.rollout.n=2", "data.train_batch_size=8")
    words, runs = (*OPD, *teachers, *sizes, *SHORT), tmp_path / "runs" / "rllm-training"
    reference = forked_rllm(*words, f"{NAME}=uninterrupted")
    assert reference.returncode == 0, reference.stderr
    process = start_forked_rllm(*words)
    wait_for_steps(runs / "default", 5, process)
    process.kill()
    process.communicate(timeout=200)
    resumed = forked_rllm(*words, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert weights(runs / "default") == weights(runs / "uninterrupted")
    assert metrics(runs / "default") == metrics(runs / "uninterrupted")
    assert min(line["actor/grad_norm"] for line in metrics(runs / "default") if "actor/grad_norm" in line) > 0


@pytest.mark.long
@pytest.mark.usefixtures("with_view")
def test_killed_distillation_from_distributions_ends_as_if_uninterrupted(
    teacher: str, start_forked_rllm: Any, forked_rllm: Any, tmp_path: Path
) -> None:
    sizes = ("rllm.trainer.total_batches=8", "rllm.trainer.save_freq=3", "rllm.rollout.n=2", "data.train_batch_size=8")
    options = ("rllm.record=tokens", "training.learning_rate=0.01", "training.num_minibatches=2")
    words, runs = (*GKD, "--teacher", teacher, *sizes, *options, *SHORT), tmp_path / "runs" / "rllm-training"
    reference = forked_rllm(*words, f"{NAME}=uninterrupted")
    assert reference.returncode == 0, reference.stderr
    process = start_forked_rllm(*words)
    wait_for_steps(runs / "default", 5, process)
    process.kill()
    process.communicate(timeout=200)
    resumed = forked_rllm(*words, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert weights(runs / "default") == weights(runs / "uninterrupted")
    assert metrics(runs / "default") == metrics(runs / "uninterrupted")
    found = [line["actor/target_divergence"] for line in metrics(runs / "default") if "actor/target_divergence" in line]
    assert found[-1] < 0.5 * found[0]
    checked = forked_rllm("record", "check", str(runs / "default"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    uid = forked_rllm("why", str(runs / "default"), "0").stdout.splitlines()[1].split()[0]
    check_values(forked_rllm("why", str(runs / "default"), "0", uid).stdout, "topk_kl", "trained in step 0")


@pytest.mark.long
def test_examples_are_learned_with_a_teacher(teacher: str, forked_rllm: Any, tmp_path: Path) -> None:
    words = ("rllm.trainer.total_batches=2", "data.train_batch_size=16", f"rllm.teacher=model:{teacher}")
    done = forked_rllm(*GKD_OF_SFT, *words, f"{NAME}=with_teacher")
    assert done.returncode == 0, done.stderr
    (line, *_) = metrics(tmp_path / "runs" / "rllm-sft" / "with_teacher")
    assert line["actor/target_divergence"] > 0
    assert line["actor/loss"] > 0


@pytest.mark.long
def test_two_steps_train_on_tinker(teacher: str, forked_rllm: Any, tmp_path: Path) -> None:
    words = ("--backend", "tinker", "tinker_base_url=local", "--model", "tiny", "training.learning_rate=0.01")
    sizes = ("rllm.trainer.total_batches=2", "rllm.rollout.n=4", "data.train_batch_size=16")
    done = forked_rllm(*OPD, "--teacher", teacher, *words, *sizes, *SHORT)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "rllm-training" / "default"
    before, after = divergences(run)
    assert after < before
    assert all(line["actor/grad_norm"] > 0 for line in metrics(run) if "actor/grad_norm" in line)


@pytest.mark.long
def test_distilled_model_reaches_its_teacher(forked_rllm: Any, tmp_path: Path) -> None:
    quick = ("training.learning_rate=3e-3", "rllm.record=off")
    sft = ("sft", "--data", "examples.jsonl", "data.train_batch_size=64", "rllm.trainer.total_epochs=30")
    assert forked_rllm(*sft, *quick, f"{NAME}=teacher").returncode == 0
    teacher = str(tmp_path / "runs" / "rllm-sft" / "teacher" / "checkpoints" / "latest")
    sizes = ("rllm.trainer.total_batches=100", "data.train_batch_size=16", "rllm.rollout.n=16")
    words = (*sizes, "data.max_response_length=6", "training.lr_schedule=linear", *quick)
    done = forked_rllm(*OPD, "--teacher", teacher, *words)
    assert done.returncode == 0, done.stderr
    found = divergences(tmp_path / "runs" / "rllm-training" / "default")
    assert found[0] > 1
    assert abs(sum(found[-10:]) / 10) < 0.01
