"""`rllm record check`: losses and coefficients follow from the record, and changed values are reported."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from expecting import check_values, expect_error
from tinker_in_process import running_server

from rllm_core.errors import RllmError
from rllm_record.command import record
from rllm_record.steps import StepFiles
from rllm_tinker_server.serve import ModelOptions, open_service

TOKENS: dict[str, Any] = {
    "rllm.record": "tokens",
    "rllm.trainer.total_batches": 2,
    "training.num_minibatches": 2,
    "training.num_epochs": 2,
    "training.learning_rate": 3e-3,
}
CORRECTED = {
    "rllm.algorithm.rollout_correction.tis_mode": "sequence",
    "rllm.algorithm.rollout_correction.bypass_mode": False,
}
RUNS: dict[str, dict[str, Any]] = {
    "demo": {},
    "kl and entropy": {
        "rllm.algorithm.kl_beta": 0.1,
        "rllm.algorithm.entropy.coeff": 0.05,
        "rllm.algorithm.loss_agg_mode": "seq-mean-token-sum-norm",
    },
    "corrected": {**CORRECTED, "rllm.algorithm.loss_agg_mode": "seq-mean-token-mean"},
    "critic": {"rllm.algorithm.adv_estimator": "gae", "training.max_tokens_per_microbatch": 64},
    "adapter": {"model.lora_rank": 4, "rllm.algorithm.loss_fn": "gspo", "rllm.algorithm.loss_agg_mode": "token-sum"},
}


def checked(directory: Path) -> tuple[int, str]:
    """Return the exit code and the output."""
    result = CliRunner().invoke(record, ["check", str(directory)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def change(file: Path, column: str, chosen: Callable[[dict[str, Any]], bool], value: Callable[[Any], Any]) -> None:
    """Change a column of the first row of a Parquet file that is chosen."""
    with pq.ParquetFile(file) as opened:
        table = opened.read()
    rows = table.to_pylist()
    row = next(row for row in rows if chosen(row))
    row[column] = value(row[column])
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file)


def louder(values: list[float]) -> list[float]:
    return [values[0] - 0.05, *values[1:]]


def change_a_log_prob(directory: Path) -> str:
    """Change the first token with a coefficient. Return the check's name of its optimizer step."""
    for step in (0, 1):
        file = directory / f"record/traces/step_{step:06d}.parquet"
        for row in StepFiles(directory / "record").trace_table(step).to_pylist():
            if row["policy_part"][0]:
                change(file, "logprob", lambda other, row=row: other["policy_part"] == row["policy_part"], louder)
                return f"step {step}, optimizer step {row['optimizer_step']}"
    raise AssertionError("no row begins with a token that has a coefficient")


def assert_named(directory: Path, where: str) -> str:
    """Check that only the changed file and this optimizer step are reported. Return the output."""
    code, said = checked(directory)
    assert code == 1
    changed, *named, last = said.splitlines()
    assert changed.endswith(".parquet has changed since it was written: its digest differs")
    assert all(line.startswith(where) for line in named)
    assert named[0].startswith(f"{where}: loss is ")
    assert last.startswith("the record differs from the updates in ")
    return said


@pytest.fixture
def recorded(shared_run: Any, tmp_path: Path) -> Path:
    """Return the directory of a run with `TOKENS`, which a test may change."""
    return Path(shutil.copytree(shared_run("lucky", TOKENS).directory, tmp_path / "run"))


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
@pytest.mark.long
def test_loss_of_every_optimizer_step_follows_from_record(shared_run: Any, settings: dict[str, Any]) -> None:
    run = shared_run("lucky", TOKENS | settings)

    code, said = checked(run.directory)

    updates = sum(StepFiles(run.directory / "record").update_table(step).num_rows for step in (0, 1))
    assert updates == 8
    check_values(said, "8 optimi", "2 steps")
    assert code == 0


@pytest.fixture(scope="module")
def tinker_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a server in this process."""
    options = ModelOptions(model="tiny", checkpoints=tmp_path_factory.mktemp("checkpoints"))
    with open_service(options) as service, running_server(service) as running:
        yield running.url


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, RUNS["kl and entropy"]], ids=["of the service", "computed here"])
def test_tinker_losses_follow_from_the_record(
    train: Any, tinker_server: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    tinker = {"rllm.backend": "tinker", "tinker_base_url": tinker_server, "model.name": "tiny"}
    run = train("lucky", TOKENS | {"rllm.algorithm.loss_fn": "importance_sampling"} | tinker | settings)

    code, said = checked(run.directory)

    check_values(said, "8 optimi", "2 steps")
    assert code == 0
    (row, *_) = StepFiles(run.directory / "record").trace_table(0).to_pylist()
    assert row["entropy"] is None

    assert_named(run.directory, change_a_log_prob(run.directory))


@pytest.mark.long
def test_changed_log_prob_is_named_by_step(recorded: Path) -> None:
    assert "policy_part is" in assert_named(recorded, change_a_log_prob(recorded))


CHANGES: dict[str, tuple[str, str, Callable[[Any], Any], str]] = {
    "coefficient": ("traces", "policy_part", louder, "policy_part is "),
    "weight": ("traces", "weight", louder, "weight is "),
    "advantage": ("traces", "advantage", louder, "policy_part is "),
    "loss": ("updates", "loss", lambda loss: loss + 1e-4, "loss is "),
    "trajectory": ("traces", "trajectory", lambda uid: uid + "?", "is traced, and not trained"),
}


@pytest.mark.long
@pytest.mark.parametrize(("kind", "column", "value", "said"), CHANGES.values(), ids=CHANGES)
def test_whatever_is_changed_is_named(recorded: Path, kind: str, column: str, value: Any, said: str) -> None:
    change(recorded / "record" / kind / "step_000000.parquet", column, lambda row: True, value)

    code, output = checked(recorded)

    assert code == 1
    assert output.startswith("step 0")
    assert said in output


def test_trained_trajectory_without_a_trace_is_named(recorded: Path) -> None:
    uid = StepFiles(recorded / "record").trace_table(0).to_pylist()[0]["trajectory"]
    for _ in range(TOKENS["training.num_epochs"]):
        file = recorded / "record/traces/step_000000.parquet"
        change(file, "trajectory", lambda row: row["trajectory"] == uid, lambda value: value + "?")

    assert f"{uid} is trained on, and has no trace" in checked(recorded)[1]


def test_a_loss_that_was_logged_otherwise_is_named(recorded: Path) -> None:
    metrics = recorded / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"actor/loss": ', '"actor/loss": 1'))

    assert "step 0: actor/loss in metrics.jsonl is 1" in checked(recorded)[1]


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        ("updates/step_000001.parquet", "step 1: "),
        ("traces/step_000001.parquet", "step 1: "),
        ("updates", "4 places"),
    ],
)
def test_files_that_are_missing_are_differences(recorded: Path, removed: str, said: str) -> None:
    for file in [*(recorded / "record" / removed).glob("*")] or [recorded / "record" / removed]:
        file.unlink()

    code, output = checked(recorded)

    assert code == 1
    assert f"{removed.partition('/')[0]}/step_000001.parquet" in output
    assert said in output


def test_steps_whose_loss_was_not_logged_are_counted(recorded: Path) -> None:
    (recorded / "metrics.jsonl").write_text("")

    code, said = checked(recorded)

    assert code == 0
    check_values(said, "metrics.jsonl", "2 steps")


def test_only_last_line_of_metrics_may_be_damaged(recorded: Path) -> None:
    file = recorded / "metrics.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"step": 2, "actor/loss": }')
    assert checked(recorded)[0] == 0
    file.write_bytes(b'{"step": }\n' + whole)
    with expect_error(RllmError, "damaged-file", "Line 1", "metrics.jsonl"):
        checked(recorded)


@pytest.mark.parametrize(
    ("recorded", "code", "hint"),
    [
        (None, "no-record", "rllm.record=tokens"),
        ("outcomes", "record-without-updates", "rllm.record=tokens"),
        ("tokens", "record-without-updates", "rllm view"),
    ],
)
def test_record_without_updates_cannot_be_checked(tmp_path: Path, recorded: Any, code: str, hint: str) -> None:
    (tmp_path / "metrics.jsonl").touch()
    if recorded:
        StepFiles(tmp_path / "record").write(0, [], [], recorded)

    with expect_error(RllmError, code, tmp_path, hint):
        checked(tmp_path)


def test_a_directory_above_the_run_is_enough(recorded: Path) -> None:
    assert checked(recorded.parent) == checked(recorded)
