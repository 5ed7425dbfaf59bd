"""A server that is killed in the middle of a step, restarted, and a run that goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .conftest import Ended, Rllm, ServerProcess, metrics_of, server_process
from .proxy import FaultyProxy, faulty_proxy

pytestmark = pytest.mark.slow

STEPS = "rllm.trainer.total_batches=6"
PATIENCE = 1.0
MOMENTS = ("rollouts", "gradient", "between gradient and optimiser step", "saving")
RUN = Path("runs", "rllm-training", "default")


class Restarted:
    """A server behind an address that stays, restarted on the same checkpoints."""

    def __init__(self, folder: Path, proxy: FaultyProxy, stack: ExitStack) -> None:
        self._folder = folder
        self._proxy = proxy
        self._stack = stack
        self._server: ServerProcess | None = None
        self.start()

    @property
    def url(self) -> str:
        return self._proxy.url

    def start(self) -> None:
        self._server = self._stack.enter_context(server_process(self._folder))
        self._proxy.target = self._server.url

    def kill_at(self, moment: str) -> None:
        """Kill it in the middle of the next step, at that moment."""
        assert self._server is not None
        before, after = self._proxy.before, self._proxy.after
        calls, route = {
            "rollouts": (after, "asample"),
            "gradient": (after, "forward_backward"),
            "between gradient and optimiser step": (before, "optim_step"),
            "saving": (after, "save_weights"),
        }[moment]
        calls[route] = self._server.kill


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Restarted]:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    with ExitStack() as stack:
        yield Restarted(folder, stack.enter_context(faulty_proxy("http://127.0.0.1:9")), stack)


def _check(ended: Ended) -> None:
    assert ended.code == 1
    assert "no Tinker service can be reached at http://127.0.0.1" in ended.error
    assert "then go on from the newest checkpoint with --resume" in ended.error
    assert ended.seconds < PATIENCE + 5


def test_a_run_whose_server_is_killed_at_every_moment_of_a_step_ends_with_the_same_numbers(
    server: Restarted, train: Rllm, tmp_path: Path
) -> None:
    settings = (STEPS, f"tinker_connect_timeout={PATIENCE:g}", "rllm.algorithm.entropy.coeff=0")
    undisturbed = train(server.url, *settings, "rllm.trainer.experiment_name=undisturbed")
    assert undisturbed.code == 0, undisturbed.errors

    assert train(server.url, *settings, "rllm.trainer.total_batches=1").code == 0
    for finished, moment in enumerate(MOMENTS, start=1):
        server.kill_at(moment)
        _check(train(server.url, *settings, "--resume"))
        # What was saved before is what there is; of the step that was under way nothing counts.
        assert len(metrics_of(tmp_path / RUN)) <= finished + 1
        server.start()
        made = train(server.url, *settings, f"rllm.trainer.total_batches={finished + 1}", "--resume")
        assert made.code == 0, made.errors
    resumed = train(server.url, *settings, "--resume")

    assert resumed.code == 0, resumed.errors
    assert "resuming after step 5" in resumed.output
    assert metrics_of(tmp_path / RUN) == metrics_of(tmp_path / RUN.with_name("undisturbed"))
