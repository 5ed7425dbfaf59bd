"""A server is killed in the middle of a step and restarted. The run continues without a difference."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from expecting import check_printed

from .conftest import Rllm, ServerProcess, metrics_of, server_process
from .proxy import Proxy, open_proxy

STEPS = 5
SETTINGS = (f"rllm.trainer.total_batches={STEPS}", "tinker_connect_timeout=1")
MOMENTS = ("rollouts", "gradient", "between gradient and optimizer step", "saving")
RUN = Path("runs", "rllm-training", "guess-1")


class RestartableServer:
    """A server behind an address that stays, restarted on the same checkpoints."""

    def __init__(self, directory: Path, proxy: Proxy, stack: ExitStack) -> None:
        self._directory = directory
        self._proxy = proxy
        self._stack = stack
        self._server: ServerProcess | None = None
        self.start()

    @property
    def url(self) -> str:
        return self._proxy.url

    def start(self) -> None:
        self._server = self._stack.enter_context(server_process(self._directory))
        self._proxy.target = self._server.url

    def kill_at(self, moment: str) -> None:
        """Kill it at that moment of the step after the next checkpoint."""
        assert self._server is not None
        kill, proxy = self._server.kill, self._proxy
        calls, route = {
            "rollouts": (proxy.after, "asample"),
            "gradient": (proxy.after, "forward_backward"),
            "between gradient and optimizer step": (proxy.before, "optim_step"),
            "saving": (proxy.after, "save_weights"),
        }[moment]
        proxy.after["save_weights"] = lambda: calls.update({route: kill})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestartableServer]:
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    with ExitStack() as stack:
        yield RestartableServer(directory, stack.enter_context(open_proxy("http://127.0.0.1:9")), stack)


@pytest.fixture
def train_and_resume(server: RestartableServer, train: Rllm, caplog: pytest.LogCaptureFixture) -> Callable[..., str]:
    """Kill the server at each of some moments, restart it and resume. Return the output of the last command."""

    def run(moments: Sequence[str], *words: str) -> str:
        for finished, moment in enumerate(moments):
            server.kill_at(moment)
            killed = train(server.url, *words, *(["--resume"] if finished else []))
            assert killed.code == 1
            check_printed(killed.error, "service-unreachable", "http://127.0.0.1", "--resume")
            server.start()
        resumed = train(server.url, *words, "--resume")
        gc.collect()
        assert not [record for record in caplog.records if record.name == "asyncio"], "printed next to the error"
        assert resumed.code == 0, resumed.errors
        return resumed.output

    return run


@pytest.mark.long
def test_killed_servers_at_every_moment_change_no_number(
    server: RestartableServer, train: Rllm, train_and_resume: Callable[..., str], tmp_path: Path
) -> None:
    undisturbed = train(server.url, *SETTINGS, "rllm.trainer.experiment_name=undisturbed")
    assert undisturbed.code == 0, undisturbed.errors
    output = train_and_resume(MOMENTS, *SETTINGS)
    assert f"resuming after {len(MOMENTS)} of " in output
    assert metrics_of(tmp_path / RUN) == metrics_of(tmp_path / RUN.with_name("undisturbed"))


@pytest.mark.parametrize(
    ("latest", "moment"),
    [
        pytest.param("true", "gradient", marks=pytest.mark.smoke),
        pytest.param("false", "rollouts", marks=pytest.mark.long),
    ],
)
def test_run_with_batches_ahead_resumes_on_new_server(
    train_and_resume: Callable[..., str], tmp_path: Path, latest: str, moment: str
) -> None:
    ahead = ("rllm.async_training.enable=true", "rllm.async_training.staleness_threshold=2")
    train_and_resume([moment], *SETTINGS, *ahead, f"rllm.async_training.partial_rollout={latest}")
    trained = [line for line in metrics_of(tmp_path / RUN) if "staleness/max" in line]
    assert len(trained) == STEPS
    assert all(line["staleness/max"] <= 2 for line in trained)
