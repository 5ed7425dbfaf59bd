"""`rllm train … rllm/backend=verl --profile cpu` as a user runs it: it learns, and continues after it was killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expecting import check_values

from rllm.cli.main import main

from .conftest import RUN, training, training_steps

pytestmark = pytest.mark.timeout(400)

STEPS = 14
KILLED, RESUMED = 3, 5
"""Steps of the other run before it is killed, and of all."""
WORDS = (
    "sum",
    # Four tasks, which a few large steps are enough for.
    "rllm.env.env_args.largest=1",
    "actor_rollout_ref.actor.optim.lr=0.003",
    "training.num_minibatches=4",
    "rllm.record=tokens",
    "rllm.trainer.save_freq=2",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.val_before_train=false",
)
DEPENDS_ON_ARRIVAL = ("actor/rollout_logprob_difference", "rollout_corr/")
"""The last bits of the rollout's log-probs depend on the requests that share a forward pass."""


def check_record(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """Exit code and output of `rllm record check`."""
    capsys.readouterr()
    try:
        code: Any = main(["record", "check", str(run)])
    except SystemExit as ended:
        code = ended.code
    return code, capsys.readouterr().out


def change_a_log_prob(traces: Path) -> tuple[int, int]:
    """Of the first token that has a coefficient. Returns its step and optimizer step."""
    for file in sorted(traces.iterdir()):
        with pq.ParquetFile(file) as opened:
            table = opened.read()
        rows = table.to_pylist()
        for row in rows:
            if row["policy_part"][0]:
                row["logprob"][0] -= 0.05
                pq.write_table(pa.Table.from_pylist(rows, table.schema), file)
                return int(file.stem.removeprefix("step_")), row["optimizer_step"]
    raise AssertionError("no token has a coefficient")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a run that was not disturbed."""
    directory = tmp_path_factory.mktemp("finished")
    with training(directory, *WORDS, f"rllm.trainer.total_batches={STEPS}") as run:
        assert run.process.wait(timeout=500) == 0, run.read_output()
        run.wait_until_nothing_is_alive()
        yield directory / RUN


@pytest.mark.smoke
def test_run_learns_with_equal_trainer_and_rollout_weights(finished_run: Path) -> None:
    steps = training_steps(finished_run)
    assert len(steps) == STEPS
    solved = [step["batch/solved"] for step in steps]
    assert sum(solved[:3]) / 3 < 0.1
    assert sum(solved[-3:]) / 3 > 0.12, "chance is 0.016; how far a run gets in these steps is its seed's"
    assert max(step["actor/rollout_logprob_difference"] for step in steps) < 1e-5


@pytest.mark.smoke
def test_the_losses_of_verl_follow_from_the_record(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = check_record(finished_run, capsys)
    check_values(printed, f"{8 * STEPS} optimi", f"{STEPS} steps")
    assert code == 0
    # A log-prob that was changed in the record is named by its step.
    shutil.copytree(finished_run, tmp_path / "copy")
    step, optimizer_step = change_a_log_prob(tmp_path / "copy/record/traces")
    code, printed = check_record(tmp_path / "copy", capsys)
    changed, *named, _ = printed.splitlines()
    assert changed.startswith(f"step {step}: traces/")
    assert named
    assert all(line.startswith(f"step {step}, optimizer step {optimizer_step}") for line in named)
    assert code == 1


@pytest.mark.long
def test_a_checkpoints_model_scores_equally_with_another_backend(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("eval", "sum", "--backend", "local", "--model", str(finished_run / "checkpoints/latest"))
    assert main([*words, "rllm.env.env_args.largest=1"]) == 0
    lines = [json.loads(line) for line in (finished_run / "metrics.jsonl").read_text().splitlines()]
    last = next(line for line in reversed(lines) if "val/sum/pass@1" in line)
    assert f"{last['val/sum/pass@1']:.3f}" in capsys.readouterr().out


@pytest.mark.long
def test_killed_run_resumes_exactly_and_leaves_no_process(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*WORDS, f"rllm.trainer.total_batches={RESUMED}")
    with training(tmp_path, *words) as first:
        first.wait_until(lambda: len(first.steps()) >= KILLED)
        first.process.kill()
        first.process.wait()
        with training(tmp_path, *words, "--resume") as second:
            # Two of Ray's processes would live for more than a minute. The next run kills them before it starts Ray.
            first.wait_until_nothing_is_alive(seconds=40)
            assert second.process.wait(timeout=500) == 0, second.read_output()
            second.wait_until_nothing_is_alive()
    ended, undisturbed = training_steps(tmp_path / RUN), training_steps(finished_run)[:RESUMED]
    assert [split(step)[0] for step in ended] == [split(step)[0] for step in undisturbed]
    for resumed, whole in zip(ended, undisturbed, strict=True):
        assert split(resumed)[1] == pytest.approx(split(whole)[1], abs=1e-5)
    assert check_record(tmp_path / RUN, capsys)[0] == 0


def split(step: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics that are equal in every run, and those that are not quite."""
    near = {name: value for name, value in step.items() if name.startswith(DEPENDS_ON_ARRIVAL)}
    return {name: value for name, value in step.items() if name not in near}, near
