"""The trace of each token is read as the backend reported it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from expecting import expect_error

from rllm_core.data.batch import TokenBatch, build_batch
from rllm_core.data.record import OptimizerStep, TokenTrace
from rllm_core.data.types import Episode, TerminationReason, Trajectory, TrajectoryGroup
from rllm_record.steps import RecordedUpdate, RecordError, StepFiles, parquet
from rllm_record.steps.accounting import Accounting

from .made_steps import step

OBJECTIVE = {"backend": "local", "losses": {"agent": {"name": "rllm-core/ppo", "params": {}}}}


def make_trajectory(*logprobs: float) -> Trajectory:
    """Two turns, the second with a different history, so two segments."""
    trajectory = Trajectory("agent", reward=1.0, uid="own")
    trajectory.add_step([1, 2], [3, 4], logprobs[:2])
    trajectory.add_step([9], [5], logprobs[2:])
    return trajectory


def batch_of(*trajectories: Trajectory) -> TokenBatch:
    batch = build_batch([TrajectoryGroup(group_id="t:agent", trajectories=list(trajectories))])
    return batch.with_columns(
        advantages=np.where(batch.loss_mask, 0.5, 0.0).astype(np.float32), old_logprobs=batch.sampling_logprobs
    )


def trace_of(batch: TokenBatch, epochs: int = 1, **columns: Any) -> TokenTrace:
    """A trace in a different order than the batch. Log-probs decrease with epochs."""
    tokens = np.flatnonzero(batch.loss_mask)[::-1]
    rows = np.searchsorted(batch.row_offsets, tokens, side="right") - 1
    epoch = np.repeat(np.arange(epochs), len(tokens))
    zeros = np.zeros(len(epoch), np.float32)
    given: dict[str, Any] = {
        "row": np.tile(rows, epochs).astype(np.int32),
        "position": np.tile(tokens - batch.row_offsets[rows], epochs).astype(np.int32),
        "epoch": epoch.astype(np.int32),
        "optimizer_step": epoch.astype(np.int32),
        "logprob": np.tile(batch.sampling_logprobs[tokens], epochs) - epoch.astype(np.float32),
        **dict.fromkeys(("weight", "clipped", "policy_part", "kl_part", "entropy_part", "entropy"), zeros),
    }
    return TokenTrace(**(given | columns))


def record_step(directory: Path, *trajectories: Trajectory, **fields: Any) -> StepFiles:
    """The record of a step that generated trajectories and trained on them."""
    files = StepFiles(directory)
    done = TerminationReason.ENV_DONE
    episodes = [
        Episode(id=f"t:{number}", trajectories=[each], termination_reason=done)
        for number, each in enumerate(trajectories)
    ]
    account = Accounting().account_for(step(0, episodes, []), {})
    uids = [f"0.0:t:{number}/0" for number in range(len(episodes))]
    given: dict[str, Any] = {"batch": batch_of(*trajectories), "uids": uids, "rollout_steps": [0] * len(episodes)}
    update = RecordedUpdate(**(given | {"objective": OBJECTIVE} | fields))
    files.write(0, account.episodes, account.outcomes, "tokens", update=update)
    return files


def test_each_segment_has_a_row_for_each_epoch(tmp_path: Path) -> None:
    trajectory = make_trajectory(-1.0, -2.0, -3.0)
    last_first = np.array([1.0, 0.0, 1.0] * 2, np.float32)
    files = record_step(tmp_path, trajectory, trace=trace_of(batch_of(trajectory), epochs=2, clipped=last_first))

    rows = files.trace_table(0).to_pylist()

    shown = ("trajectory", "segment", "epoch", "optimizer_step", "positions", "ids", "rollout_logprob", "logprob")
    assert [tuple(row[name] for name in shown) for row in rows] == [
        ("0.0:t:0/0", 0, 0, 0, [2, 3], [3, 4], [-1.0, -2.0], [-1.0, -2.0]),
        ("0.0:t:0/0", 1, 0, 0, [1], [5], [-3.0], [-3.0]),
        ("0.0:t:0/0", 0, 1, 1, [2, 3], [3, 4], [-1.0, -2.0], [-2.0, -3.0]),
        ("0.0:t:0/0", 1, 1, 1, [1], [5], [-3.0], [-4.0]),
    ]
    values = [(row["old_logprob"], row["advantage"], row["role"]) for row in rows[:2]]
    assert values == [([-1.0, -2.0], [0.5, 0.5], "agent"), ([-3.0], [0.5], "agent")]
    assert files.trace_table(0)["clipped"].to_pylist() == [[True, False], [True]] * 2
    # Values that episodes have are not stored twice.
    stored = pq.ParquetFile(tmp_path / "traces" / "step_000000.parquet").read()
    assert [stored[name].null_count for name in ("ids", "rollout_logprob", "old_logprob")] == [4, 4, 4]


def test_values_missing_in_episodes_are_stored(tmp_path: Path) -> None:
    trajectory = make_trajectory(-1.0, float("nan"), -3.0)
    batch = batch_of(trajectory)
    computed = batch.with_columns(old_logprobs=batch.old_logprobs_from(np.full(len(batch.tokens), -7.0, np.float32)))
    files = record_step(tmp_path, trajectory, batch=computed, rollout_steps=[None])

    first, second = files.trace_table(0).to_pylist()

    assert (first["ids"], second["ids"], second["rollout_logprob"]) == ([3, 4], [5], [-3.0])
    assert (first["old_logprob"], second["old_logprob"]) == ([-7.0, -7.0], [-3.0])
    assert np.isnan(first["rollout_logprob"][1])


def test_values_missing_in_the_backend_are_null(tmp_path: Path) -> None:
    trajectory = make_trajectory(-1.0, -2.0, -3.0)
    unknown = np.full(3, np.nan, np.float32)
    given = {"optimizer_steps": [OptimizerStep(epoch=0, number=0, loss=0.25)]}
    batch = batch_of(trajectory)
    files = record_step(tmp_path, trajectory, trace=trace_of(batch, entropy=unknown, clipped=unknown), **given)

    (row, _) = files.trace_table(0).to_pylist()
    (update,) = files.update_table(0).to_pylist()

    assert (row["entropy"], row["ref_logprob"], row["weight"]) == (None, None, [0.0, 0.0])
    assert row["clipped"] is None
    assert (update["loss"], update["grad_norm"], update["loss_seed"]) == (0.25, None, None)


def test_update_without_trace_has_trained_tokens(tmp_path: Path) -> None:
    files = record_step(tmp_path, make_trajectory(-1.0, -2.0, -3.0))

    (row, _) = files.trace_table(0).to_pylist()

    assert (row["positions"], row["ids"], row["advantage"]) == ([2, 3], [3, 4], [0.5, 0.5])
    assert (row["epoch"], row["optimizer_step"], row["logprob"], row["policy_part"]) == (None,) * 4
    assert files.update_table(0).num_rows == 0
    assert files.objective(0) == OBJECTIVE


def test_a_step_without_an_update_has_no_traces(tmp_path: Path) -> None:
    files = StepFiles(tmp_path)
    files.write(0, [], [], "tokens")

    with expect_error(RecordError, "no-record", "step_000000.parquet"):
        files.trace_table(0)


def test_texts_of_tokens_add_up(tmp_path: Path) -> None:
    files = StepFiles(tmp_path)
    for number, words in enumerate(({1: "a"}, {}, {7: "\ufffd"})):
        files.write(number, [], [], "tokens", vocabulary=words)

    assert [files.vocabulary(number) for number in (0, 1, 2)] == [{1: "a"}, {1: "a"}, {1: "a", 7: "\ufffd"}]
    assert StepFiles(tmp_path / "elsewhere").vocabulary(9) == {}


def test_waiting_trajectory_is_found_in_its_rollout_step(tmp_path: Path) -> None:
    trajectory = make_trajectory(-1.0, -2.0, -3.0)
    files = record_step(tmp_path, trajectory)
    batch = batch_of(trajectory)
    update = RecordedUpdate(batch=batch, uids=["0.0:t:0/0"], rollout_steps=[0], objective=OBJECTIVE)
    files.write(1, [], [], "tokens", update=update)

    assert [row["ids"] for row in files.trace_table(1).to_pylist()] == [[3, 4], [5]]


def test_trace_of_one_trajectory_equals_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 64)
    trajectories = [make_trajectory(-float(number), -2.0, -3.0) for number in range(5)]
    batch = batch_of(*trajectories)
    files = record_step(tmp_path, *trajectories, trace=trace_of(batch, epochs=2))

    of_all = files.trace_table(0).to_pylist()

    for number in range(5):
        found = files.trace_table(0, f"0.0:t:{number}/0").to_pylist()
        assert found == [row for row in of_all if row["trajectory"] == f"0.0:t:{number}/0"]
        assert len(found) == 4
    assert files.trace_table(0, "0.0:t:9/0").num_rows == 0
