"""`rllm record check` finds every changed value of a record, and most of them even if the digests are changed too."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rllm_record.check.checking import check_run
from rllm_record.steps.files import DIGESTS_KEY, KINDS, StepFiles, add_own_digest, digest_of, digests_mark
from rllm_record.steps.parquet import encode_table, write_file

SETTINGS: dict[str, Any] = {
    "rllm.record": "tokens",
    "rllm.rollout.n": 4,
    "data.max_response_length": 4,
    "training.num_minibatches": 2,
    "rllm.algorithm.kl_beta": 0.1,
    "rllm.algorithm.entropy.coeff": 0.05,
}
FOLLOWS = {
    "episodes": ("uid", "batch", "trajectories.uid", "trajectories.reward_used", "trajectories.reward"),
    "outcomes": ("step", "trajectory", "outcome", "episode", "rollout_step", "name", "advantage"),
    "traces": ("trajectory", "positions", "advantage", "logprob", "entropy", "weight", "policy_part"),
    "updates": ("loss", "policy_loss", "kl_loss", "entropy_loss", "grad_norm", "learning_rate"),
}
"""Columns that determine others, or follow from others. A change is found without the digests."""


def columns_with_data(row: Any, column: str = "") -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the columns of a row that have a value, and the change."""
    places = row.items() if isinstance(row, dict) else enumerate(row)
    for key, value in places:
        name = ".".join(filter(None, (column, key))) if isinstance(key, str) else column
        if isinstance(value, dict | list):
            yield from columns_with_data(value, name)
        elif isinstance(value, tuple):  # An entry of a map.
            yield f"{name}.value", lambda key=key, pair=value: row.__setitem__(key, (pair[0], other(pair[1])))
        elif value is not None:
            yield name, lambda key=key, value=value: row.__setitem__(key, other(value))


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + "?" if isinstance(value, str) else value + 1


def changes(place: Path) -> Iterator[str]:
    """Change one column after the other, in the first row with a value. Yield its name while it is changed."""
    before = place.read_bytes()
    with pq.ParquetFile(place) as file:
        table = file.read()
    names = dict.fromkeys(name for row in table.to_pylist() for name, _ in columns_with_data(row))
    for name in names:
        rows = table.to_pylist()
        next(change for row in rows for found, change in columns_with_data(row) if found == name)()
        pq.write_table(pa.Table.from_pylist(rows, table.schema), place)
        yield name
        place.write_bytes(before)


def seal(files: StepFiles) -> None:
    """Write digests of the current files of step 0."""
    place = files.place("outcomes", 0)
    with pq.ParquetFile(place) as file:
        table = file.read()
    found = {kind: digest_of(files.place(kind, 0).read_bytes()) for kind in KINDS if kind != "outcomes"}
    marks = {**table.schema.metadata, DIGESTS_KEY: digests_mark(found)}
    write_file(place, add_own_digest(encode_table(table.replace_schema_metadata(None), marks)))


ESTIMATED: dict[str, dict[str, Any]] = {
    "rloo": {"rllm.algorithm.adv_estimator": "rloo"},
    "waiting": {
        "rllm.rejection_sample.enable": True,
        "rllm.rejection_sample.mode": "dynamic",
        "rllm.rejection_sample.max_gen_batches": 3,
        "rllm.trainer.total_batches": 3,
    },
}


@pytest.mark.parametrize("settings", ESTIMATED.values(), ids=ESTIMATED)
def test_check_unchanged_record_has_no_problem(shared_run: Any, settings: dict[str, Any]) -> None:
    report = check_run(shared_run("lucky", SETTINGS | settings).directory)
    assert report.problems == []
    assert report.optimizer_steps
    assert report.compared_logprobs


@pytest.mark.long
def test_check_finds_any_changed_column(shared_run: Any, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(shared_run("lucky", SETTINGS).directory, tmp_path / "run"))
    files, found = StepFiles(directory / "record"), list[tuple[str, str]]()
    sealed = files.place("outcomes", 0).read_bytes()
    for kind in KINDS:
        for name in changes(files.place(kind, 0)):
            changed = [each.text for each in check_run(directory).problems if each.code == "changed-file"]
            assert len(changed) == 1 and f"{kind}/step_000000.parquet" in changed[0], (kind, name)
            found.append((kind, name))
            if name in FOLLOWS.get(kind, ()):
                seal(files)
                problems = check_run(directory).problems
                assert problems, (kind, name)
                assert all(problem.code != "changed-file" for problem in problems)
                files.place("outcomes", 0).write_bytes(sealed)
    assert len(found) == 73
    assert {(kind, name) for kind, names in FOLLOWS.items() for name in names} <= {*found}
    assert check_run(directory).problems == []
