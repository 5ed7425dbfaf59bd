"""Runs with other objectives than rewards: fine-tuning, preferences, distillation, and predicted observations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed, check_values
from recorded_runs import RecordedRuns

from .test_resume import check_same, metrics, wait_for_steps

SFT = ("sft", "--data", "chats.jsonl", "--val-data", "val_chats.jsonl", "data.train_batch_size=8")
PREFER = ("prefer", "--data", "pairs.jsonl", "--val-data", "val_pairs.jsonl", "data.train_batch_size=8")
REWARD_MODEL = (*PREFER, "--loss", "reward_model")
LABELS = ("--data", "labels.jsonl", "--val-data", "labels.jsonl", "--loss", "kto")
OPD = ("train", "question", "--data", "questions.jsonl", "--objective", "opd")
GKD = (*OPD[:5], "gkd")
GKD_OF_SFT = ("sft", "--data", "examples.jsonl", "rllm.pipeline.insert=[{stage: topk_kl, after: supervise}]")
BY_SOURCE = (
    "rllm.teacher={name: by_source, teachers: {other: model:tiny}}",
    "rllm.pipeline.insert=[{stage: distill, after: supervise}]",
)
WHOLE = "rllm.pipeline.replace={topk_kl: {name: topk_kl, k: null}}"
GUESS = ("train", "guess", "data.max_response_length=2", "rllm.rollout.n=4", "rllm.trainer.val_before_train=false")
ECHO_STAGE = "rllm.pipeline.insert=[{stage: {name: echo, %s}, after: advantages}]"
ECHO = (*GUESS, "--objective", "echo", "rllm.trainer.test_freq=-1")
TINKER = ("--backend", "tinker", "tinker_base_url=local")
NAME = "rllm.trainer.experiment_name"
SHORT = ("data.max_response_length=6", "rllm.trainer.test_freq=-1")


def message(role: str, content: object) -> dict[str, str]:
    return {"role": role, "content": str(content)}


def write_data(directory: Path) -> None:
    """Write chats with two additions, pairs of a right and a wrong sum, labels, questions, and examples.

    The answers of the examples are four numbers, each as often as the others.
    """
    questions = [f"{number} plus 1 is" for number in range(24)]
    chats = [
        {"messages": [message("user", question), message("assistant", number + 1)] * 2}
        for number, question in enumerate(questions)
    ]
    pairs = [
        {
            "prompt": [message("user", question)],
            "chosen": [message("assistant", number + 1)],
            "rejected": [message("assistant", f"not {number + 1}")],
        }
        for number, question in enumerate(questions)
    ]
    labels = [
        {"prompt": question, "completion": f" {number + 1 + number % 2}", "label": number % 2 == 0}
        for number, question in enumerate(questions)
    ]
    examples = [
        {"messages": [message("user", question), message("assistant", answer)]}
        for question in questions[:16]
        for answer in (1, 2, 3, 5)
    ]
    # Each second question has a different source.
    asked = [{"question": each, "data_source": ("one", "two")[n % 2]} for n, each in enumerate(questions[:16])]
    files = {"chats": chats, "val_chats": chats[::6], "pairs": pairs, "val_pairs": pairs[::6], "labels": labels}
    bad_margin = [{**pair, "margin": "wide"} for pair in pairs]
    files |= {"examples": examples, "questions": asked, "bad": questions, "bad_margin": bad_margin}
    for name, rows in files.items():
        (directory / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> None:
    write_data(tmp_path)


def values(run: Path, name: str) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


def check_record(rllm: Any, run: Path, stage: str) -> None:
    """Check that the record equals the updates, and that `why` shows a stage."""
    checked = rllm("record", "check", str(run))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    uid = rllm("why", str(run), "0").stdout.splitlines()[1].split()[0]
    check_values(rllm("why", str(run), "0", uid).stdout, stage, "trained in step 0")


@pytest.mark.parametrize(
    ("words", "code", "value"),
    [
        ((*SFT, "rllm.algorithm.kl_beta=0.1"), "not-for-examples", "kl_beta"),
        ((*SFT, "sampling.train.temperature=0.5"), "unused-key", "temperature"),
        ((*SFT, "rllm.algorithm.loss_fn=ppo"), "loss-needs-rollouts", "ppo"),
        ((*SFT, "rllm.rollout.n=4"), "unused-key", "rllm.rollout.n"),
        ((*SFT, "rllm.algorithm.adv_estimator=rloo"), "unused-key", "adv_estimator"),
        ((*SFT, "rllm.pipeline.stages=null"), "objective-without-stage", "rllm.pipeline"),
        ((*SFT, "--min-reward", "1"), "usage-error", "--stored"),
        ((*SFT, "--data", "questions.jsonl"), "bad-row", "'question'"),
        (("sft",), "no-training-tasks", "--data"),
        ((*PREFER, "training.num_minibatches=2"), "not-for-preferences", "num_minibatches"),
        ((*PREFER, "training.num_epochs=2"), "not-for-preferences", "num_epochs"),
        ((*PREFER, "rllm.algorithm.loss_fn=ppo"), "not-for-preferences", "ppo"),
        ((*PREFER, "rllm.algorithm.loss_map.completion=ppo"), "not-for-preferences", "loss_map"),
        ((*PREFER, "rllm.algorithm.loss_agg_mode=token-mean"), "not-for-preferences", "token-mean"),
        ((*PREFER, "rllm.algorithm.kl_beta=0.1"), "not-for-examples", "kl_beta"),
        ((*PREFER, "rllm.rollout.n=4"), "unused-key", "rllm.rollout.n"),
        ((*PREFER, "--beta", "0"), "wrong-value", "beta"),
        ((*PREFER, "--loss", "kto", "data.train_batch_size=1"), "too-few-tasks", "train_batch_size"),
        ((*PREFER, "--data", "labels.jsonl"), "bad-row", "label belongs to"),
        ((*PREFER, "rllm.pipeline.stages=null"), "objective-without-stage", "rllm.pipeline"),
        (
            (*PREFER, "rllm.pipeline.stages=[examples,group,build_batch,prefer,update,log]"),
            "stage-input-missing",
            "'preferences'",
        ),
        (("prefer",), "no-training-tasks", "--data"),
        ((*REWARD_MODEL, *TINKER), "missing-estimator-input", "scores"),
        ((*REWARD_MODEL, "--backend", "verl", "--profile", "cpu"), "missing-estimator-input", "scores"),
        ((*REWARD_MODEL, "model.lora_rank=8"), "not-for-reward-models", "model.lora_rank"),
        ((*REWARD_MODEL, "training.num_minibatches=2"), "not-for-preferences", "num_minibatches"),
        ((*REWARD_MODEL, "--beta", "0.2"), "usage-error", "--beta"),
        ((*PREFER, "--center-rewards-coefficient", "0.1"), "usage-error", "--center-rewards-coefficient"),
        ((*REWARD_MODEL, "--data", "labels.jsonl"), "bad-row", "label belongs to"),
        ((*REWARD_MODEL, "--data", "bad_margin.jsonl"), "bad-row", "margin is 'wide'"),
        (OPD, "no-teacher", "--teacher"),
        ((*OPD, "--teacher", "./nowhere"), "model-not-loadable", "./nowhere"),
        ((*OPD, "--teacher", "server:nowhere"), "wrong-value", "url"),
        ((*OPD, "--teacher", "one=model:tiny", "--teacher", "a=./nowhere"), "model-not-loadable", "./nowhere"),
        ((*OPD, "--teacher", "one=model:tiny"), "task-without-teacher", "two"),
        (("sft", "--data", "examples.jsonl", *BY_SOURCE), "task-without-teacher", "examples"),
        ((*OPD, "--teacher", "nothing"), "unknown-plugin", "nothing"),
        ((*OPD, "--teacher", "model:tiny", "--estimator", "rloo"), "unused-key", "adv_estimator"),
        ((*OPD[:4], "--objective", "other"), "unknown-plugin", "opd"),
        (GKD, "no-teacher", "--teacher"),
        ((*GKD, "--teacher", "policy:a"), "teacher-without-distributions", "policy"),
        ((*GKD, "--teacher", "one=policy:a"), "teacher-without-distributions", "policy"),
        ((*GKD, "--teacher", "http://a/v1", WHOLE), "teacher-without-vocabulary", "k"),
        ((*GKD, "--teacher", "model:tiny", *TINKER), "backend-without-targets", "tinker"),
        ((*GKD, "--teacher", "model:tiny", "--backend", "verl", "--profile", "cpu"), "backend-without-targets", "verl"),
        (("train", "guess", "--teacher", "model:tiny"), "unused-key", "rllm.teacher"),
        ((*ECHO, ECHO_STAGE % "weight: 0"), "wrong-value", "weight"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_errors(rllm_here: Any, words: tuple[str, ...], code: str, value: str) -> None:
    done = rllm_here(*words, "--dry-run")
    assert done.returncode != 0
    check_printed(done.stderr, code, value)


@pytest.mark.long
def test_fine_tuning_learns_and_validates(rllm_here: Any, tmp_path: Path) -> None:
    done = rllm_here(*SFT, "training.learning_rate=0.01", "rllm.trainer.total_epochs=10")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs/rllm-sft/run-1"
    check_values(done.stdout, "rllm eval ENV --model", "rllm train ENV --model", "rllm export")
    assert values(run, "actor/loss")[-1] < 0.5 * values(run, "actor/loss")[0]
    assert values(run, "val/val_chats/loss")[-1] < values(run, "val/val_chats/loss")[0]


@pytest.mark.long
@pytest.mark.parametrize(("words", "limit"), [(SFT, "11"), (PREFER, "12")], ids=["sft", "prefer"])
def test_long_rows_are_cut_counted_and_named(
    words: tuple[str, ...], limit: str, rllm_here: Any, tmp_path: Path
) -> None:
    done = rllm_here(*words, "--max-length", limit, "rllm.trainer.total_epochs=1", "rllm.trainer.test_freq=1")
    assert done.returncode == 0, done.stderr
    run, source = tmp_path / f"runs/rllm-{words[0]}/run-1", words[4].removesuffix(".jsonl")
    assert sum(values(run, "batch/examples")) == sum(values(run, "batch/rows_cut")) == 24
    assert values(run, f"val/{source}/rows_cut")[0] == 4
    check_values(done.stderr, "Lengths of 24 rows of", f"--max-length {limit}. 24 are longer and cut off")
    check_values(done.stderr, f"--max-length {limit}: cut off", "batch/rows_cut", f"val/{source}/rows_cut")
    done = rllm_here(*words, "--max-length", "3", "--overwrite")
    check_printed(done.stderr, "row-too-long", "--max-length 3")


@pytest.mark.long
@pytest.mark.usefixtures("with_view")
def test_good_stored_episodes_are_imitated(rllm_here: Any, recorded_runs: RecordedRuns, tmp_path: Path) -> None:
    words = ("sft", "--stored", str(recorded_runs.path("synchronous")), "--min-reward")
    done = rllm_here(*words, "0.5", "rllm.trainer.total_epochs=1", "data.train_batch_size=4")
    assert done.returncode == 0, done.stderr
    assert 0 < sum(values(tmp_path / "runs/rllm-sft/run-1", "batch/examples")) < 2 * 4 * 4
    check_printed(rllm_here(*words, "100", "--overwrite").stderr, "no-episodes", "min_reward")


@pytest.mark.long
@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_preferences_are_learned(loss: str, rllm_here: Any, tmp_path: Path) -> None:
    words = ("training.learning_rate=0.003", "rllm.trainer.total_epochs=4", "rllm.record=tokens")
    done = rllm_here(*PREFER, "--loss", loss, *words)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs/rllm-prefer/run-1"
    assert values(run, "preference/loss")[-1] < 0.9 * values(run, "preference/loss")[0]
    assert values(run, "val/val_pairs/accuracy")[-1] == 1
    assert values(run, "val/val_pairs/margin")[-1] > 0
    checked = rllm_here("record", "check", str(run))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.long
@pytest.mark.usefixtures("with_view")
def test_reward_model_separates_pairs_and_scores(rllm_here: Any, tmp_path: Path) -> None:
    """A run learns the pairs, a second run continues with its model, and a policy is trained with its scores."""
    words = ("training.learning_rate=0.003", "rllm.record=tokens", "--center-rewards-coefficient", "0.01")
    done = rllm_here(*REWARD_MODEL, *words, "rllm.trainer.total_epochs=4")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs/rllm-reward-model/run-1"
    assert f"--reward model:{run.relative_to(tmp_path)}/checkpoints/latest" in done.stdout
    assert values(run, "preference/loss")[-1] < 0.5 * values(run, "preference/loss")[0]
    assert values(run, "preference/accuracy")[-1] == 1
    assert values(run, "val/val_pairs/accuracy")[-1] == 1
    assert values(run, "val/val_pairs/margin")[-1] > 0
    check_record(rllm_here, run, "reward_model")

    exported = rllm_here("export", str(run), "--to", "hf", "--output", "exported")
    assert exported.returncode == 0, exported.stderr
    continued = rllm_here(*REWARD_MODEL, "--model", "exported", "rllm.trainer.total_batches=1")
    assert continued.returncode == 0, continued.stderr
    assert values(run.with_name("run-2"), "preference/accuracy") == [1]

    scores = []
    for model in (run / "checkpoints" / "latest", tmp_path / "exported"):
        name = f"{NAME}=by-{model.name}"
        sizes = (*SHORT, "rllm.trainer.total_batches=1", "rllm.rollout.n=2", "data.train_batch_size=4")
        used = rllm_here(*OPD[:4], "--reward", f"model:{model}", *sizes, name)
        assert used.returncode == 0, used.stderr
        scores += values(tmp_path / "runs/rllm-training" / f"by-{model.name}", "env/reward.model")
    assert scores[0] == scores[1] != 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (SFT, ("actor/loss", "val/val_chats/loss")),
        (PREFER, ("preference/loss",)),
        ((*PREFER, *LABELS), ("preference/loss",)),
    ],
    ids=["sft", "dpo", "kto"],
)
def test_loss_is_equal_on_tinker(
    words: tuple[str, ...], names: tuple[str, ...], forked_rllm: Any, tmp_path: Path
) -> None:
    terms = ("rllm.trainer.total_batches=2", "training.learning_rate=0.01", "rllm.record=tokens", "--model", "tiny")
    for backend in (("--backend", "local", "model.lora_rank=8"), TINKER):
        done = forked_rllm(*words, *terms, *backend, f"{NAME}={backend[1]}")
        assert done.returncode == 0, done.stderr
    local, tinker = (tmp_path / "runs" / f"rllm-{words[0]}" / name for name in ("local", "tinker"))
    # New LoRA weights change nothing, so both backends start from the same model.
    for name in names:
        assert values(tinker, name)[0] == pytest.approx(values(local, name)[0], rel=0, abs=1e-6)
        first, second = values(tinker, name)[:2]
        assert second < first if words is SFT else second != first
    assert values(tinker, "actor/grad_norm")[0] > 0
    assert forked_rllm("record", "check", str(tinker)).returncode == 0


@pytest.mark.smoke
@pytest.mark.usefixtures("with_view")
def test_policy_that_equals_its_teacher_has_no_gradient(rllm_here: Any, tmp_path: Path) -> None:
    small = ("rllm.trainer.total_batches=1", "rllm.rollout.n=2", "data.max_response_length=8", "rllm.record=tokens")
    done = rllm_here(*OPD, "--teacher", "model:tiny", *small)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs/rllm-training/question-1"
    assert values(run, "distill/kl") == [pytest.approx(0, abs=1e-6)]
    check_record(rllm_here, run, "distill")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, recorded_runs: RecordedRuns) -> str:
    """A model that has learned a few steps, so that it differs from the trained model."""
    directory = tmp_path_factory.mktemp("teacher")
    write_data(directory)
    words = ("data.train_batch_size=16", "rllm.trainer.total_epochs=1", "training.learning_rate=0.01")
    run = recorded_runs.run(directory, "sft", "--data", "examples.jsonl", *words)
    return str(run / "checkpoints" / "latest")


@pytest.mark.long
@pytest.mark.usefixtures("with_view")
@pytest.mark.parametrize("objective", ["prefer", "reward_model", "opd", "gkd"])
def test_killed_run_ends_as_if_uninterrupted(
    objective: str, teacher: str, start_forked_rllm: Any, forked_rllm: Any, tmp_path: Path
) -> None:
    sizes = ("rllm.trainer.total_batches=7", "rllm.trainer.save_freq=3", "training.learning_rate=0.01")
    sizes += ("rllm.record=tokens",)
    rollouts = ("rllm.rollout.n=2", "data.train_batch_size=8", "training.num_minibatches=2", *SHORT)
    words, runs = {
        "prefer": ((*PREFER, "--beta", "0.3"), "rllm-prefer/run-1"),
        "reward_model": (REWARD_MODEL, "rllm-reward-model/run-1"),
        "opd": (
            (*OPD, "--teacher", f"one={teacher}", "--teacher", "two=policy:number", *rollouts),
            "rllm-training/question-1",
        ),
        "gkd": ((*GKD, "--teacher", teacher, *rollouts), "rllm-training/question-1"),
    }[objective]
    run = tmp_path / "runs" / runs
    reference = forked_rllm(*words, *sizes, f"{NAME}=uninterrupted")
    assert reference.returncode == 0, reference.stderr
    process = start_forked_rllm(*words, *sizes)
    wait_for_steps(run, 4, process)
    process.kill()
    process.communicate(timeout=200)
    # The run's own values need not be repeated.
    resumed = forked_rllm(words[0], *words[-2:] * (objective == "reward_model"), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    check_same(run, run.with_name("uninterrupted"))
    assert min(values(run, "actor/grad_norm")) > 0
    if objective == "gkd":
        divergences = values(run, "actor/target_divergence")
        assert divergences[-1] < 0.5 * divergences[0]
        check_record(forked_rllm, run, "topk_kl")


@pytest.mark.long
def test_examples_are_learned_with_a_teacher(teacher: str, rllm_here: Any, tmp_path: Path) -> None:
    words = ("rllm.trainer.total_batches=2", "data.train_batch_size=16", f"rllm.teacher=model:{teacher}")
    done = rllm_here(*GKD_OF_SFT, *words)
    assert done.returncode == 0, done.stderr
    (line, *_) = metrics(tmp_path / "runs/rllm-sft/run-1")
    assert line["actor/target_divergence"] > 0
    assert line["actor/loss"] > 0


@pytest.mark.long
def test_distillation_takes_two_steps_on_tinker(teacher: str, forked_rllm: Any, tmp_path: Path) -> None:
    words = (*TINKER, "--model", "tiny", "training.learning_rate=0.01", "rllm.trainer.total_batches=2")
    sizes = ("rllm.rollout.n=4", "data.train_batch_size=16", *SHORT)
    done = forked_rllm(*OPD, "--teacher", teacher, *words, *sizes)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs/rllm-training/question-1"
    before, after = values(run, "distill/kl")
    assert after < before
    assert min(values(run, "actor/grad_norm")) > 0


@pytest.mark.nightly
def test_distilled_model_reaches_its_teacher(forked_rllm: Any, tmp_path: Path) -> None:
    quick = ("training.learning_rate=3e-3", "rllm.record=off")
    sft = ("sft", "--data", "examples.jsonl", "data.train_batch_size=64", "rllm.trainer.total_epochs=30")
    assert forked_rllm(*sft, *quick, f"{NAME}=teacher").returncode == 0
    teacher = str(tmp_path / "runs/rllm-sft/teacher/checkpoints/latest")
    sizes = ("rllm.trainer.total_batches=100", "data.train_batch_size=16", "rllm.rollout.n=16")
    words = (*sizes, "data.max_response_length=6", "training.lr_schedule=linear", *quick)
    done = forked_rllm(*OPD, "--teacher", teacher, *words)
    assert done.returncode == 0, done.stderr
    found = values(tmp_path / "runs/rllm-training/question-1", "distill/kl")
    assert found[0] > 1
    assert abs(sum(found[-10:]) / 10) < 0.01


@pytest.mark.smoke
def test_observations_are_predicted_and_their_record_is_checked(rllm_here: Any, tmp_path: Path) -> None:
    done = rllm_here(*ECHO, "data.train_batch_size=16", "rllm.trainer.total_batches=12", "rllm.record=tokens")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs/rllm-training/guess-1"
    assert values(run, "actor/observation_loss")[-1] < 0.9 * values(run, "actor/observation_loss")[0]
    assert min(values(run, "echo/tokens")) > 0
    checked = rllm_here("record", "check", str(run))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.long
def test_roles_without_messages_train_no_observations(rllm_here: Any, tmp_path: Path) -> None:
    words = (*GUESS, ECHO_STAGE % "roles: [tool]")
    done = rllm_here(*words, "rllm.trainer.total_batches=1", "data.train_batch_size=4")
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs/rllm-training/guess-1"
    assert values(run, "echo/tokens") == [0]
    assert values(run, "actor/observation_loss") == []
