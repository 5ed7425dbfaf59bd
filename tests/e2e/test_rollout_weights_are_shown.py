"""In asynchronous runs, the shown factors of a token multiply to its policy part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from expecting import check_values
from numpy.typing import NDArray

from rllm_record.run_files import one_run
from rllm_record.steps import StepFiles
from rllm_view.commands import why
from rllm_view.reading.account import Account, account_of
from rllm_view.reading.run import Run

AHEAD: dict[str, Any] = {
    "rllm.record": "tokens",
    "rllm.async_training.enable": True,
    "rllm.async_training.staleness_threshold": 1,
    "rllm.trainer.total_batches": 3,
    "data.train_batch_size": 4,
    "rllm.rollout.n": 4,
    "training.num_epochs": 2,
    "training.learning_rate": 3e-3,
    "rllm.algorithm.rollout_correction.tis_cap": 1.0,
}
CORRECTIONS: dict[str, dict[str, Any]] = {
    "token": {},
    "sequence": {"rllm.algorithm.rollout_correction.tis_mode": "sequence"},
    "masked": {"rllm.algorithm.rollout_correction.tis_beyond_cap": "mask"},
    "normalized": {"rllm.algorithm.rollout_correction.tis_batch_normalize": True},
    "rejected": {"rllm.algorithm.rollout_correction.reject": {"token_k1": [0.98, 1.02], "seq_sum_k2": 0.5}},
    "m2po": {"rllm.algorithm.rollout_correction.reject": {"m2po": 1e-3}},
}


def accounts_of(directory: Path, every: int = 1) -> Iterator[tuple[int, Account]]:
    """Return trained trajectories with their steps. Each needs several reads of files."""
    run, files = Run(one_run(directory)), StepFiles(directory / "record")
    run.index.refresh()
    for step in files.steps():
        trained = [each.outcome for each in files.outcomes(step) if each.outcome.outcome == "trained"]
        for outcome in trained[::every]:
            yield step, account_of(run, step, outcome.trajectory)


def values(account: Account, name: str, epoch: int | None = None) -> NDArray[np.float64]:
    (found,) = [each.values for each in account.columns if each.id == name and each.epoch == epoch]
    assert found is not None
    return found


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.smoke
def test_the_factors_multiply_to_the_policy_part(shared_run: Any, correction: str) -> None:
    directory = shared_run("lucky", AHEAD | CORRECTIONS[correction]).directory
    accounts = list(accounts_of(directory, every=6))

    corrections = np.concatenate([values(account, "rollout_weight") for _, account in accounts])
    assert np.nanmin(corrections) < 0.999
    for _, account in accounts:
        for epoch in (0, 1):
            weight, ratio = (values(account, name, epoch) for name in ("weight", "ratio"))
            product = -weight * values(account, "rollout_weight") * ratio * values(account, "advantage")
            kept = values(account, "clipped", epoch) == 0.0
            np.testing.assert_allclose(product[kept], values(account, "policy_part", epoch)[kept], rtol=1e-4, atol=1e-8)


BOUNDS = "rejects by token_k1 0.98 to 1.02, rejects by seq_sum_k2 0.5\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("correction", "column", "said"),
    [
        ("masked", "rollout_weight", ("the loss, epoch 0: no\n", "by token, cap 1, ")),
        ("rejected", "rejected_by", ("the rule: token_k1\n", BOUNDS)),
        ("m2po", "rejected_by", ("the rule: m2po\n", "rejects by m2po 0.001, cutoff ")),
    ],
)
def test_why_names_the_rule_that_masked_a_token(
    shared_run: Any, correction: str, column: str, said: tuple[str, ...]
) -> None:
    def masked(account: Account) -> NDArray[np.int64]:
        found = values(account, column)
        return np.flatnonzero(found == 0.0 if column == "rollout_weight" else found > 0)

    run = shared_run("lucky", AHEAD | CORRECTIONS[correction]).directory
    step, account = next((step, account) for step, account in accounts_of(run) if masked(account).size)
    words = [str(run), str(step), account.rollout.uid, "--token", str(masked(account)[0])]
    check_values(CliRunner().invoke(why, words).output, "    rollout correction weight: 0: masked ", *said)
