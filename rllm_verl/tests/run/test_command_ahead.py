"""`rllm train` that generates rollout batches ahead, with a rollout server on a separate GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import training

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

WORDS = (
    "guess",
    "actor_rollout_ref.rollout.nnodes=1",
    "rllm.async_training.enable=true",
    "rllm.async_training.staleness_threshold=1",
    "rllm.async_training.partial_rollout=true",
    "data.train_batch_size=4",
    "rllm.rollout.n=4",
    "rllm.trainer.total_batches=100000",
    "rllm.trainer.test_freq=-1",
    "rllm.trainer.val_before_train=false",
)


# One test: the start of the run takes most of the time.
def test_staleness_is_bounded_until_killed_server_fails_run(tmp_path: Path) -> None:
    with training(tmp_path, *WORDS) as run:
        run.wait_until(lambda: len(run.steps()) >= 4, seconds=300)
        stale = [step["staleness/max"] for step in run.steps()]
        assert stale[0] == 0
        assert max(stale) == 1
        (server,) = [process for process in run.alive() if "RolloutServer" in " ".join(process.cmdline())]
        server.kill()
        assert run.process.wait(timeout=500) != 0
        said = run.read_output()
        assert f"rollout server 0 (process {server.pid} on" in said
        assert "--resume" in said
        run.wait_until_nothing_is_alive()
