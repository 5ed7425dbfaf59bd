"""The command `rllm tinker serve` in its own process, with the real model `tiny`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tinker
from click.testing import CliRunner
from expecting import check_values, expect_error
from forked import CommandServer
from tinker import types

from rllm_core.errors import ConfigError
from rllm_tinker_server.command import tinker as group

DEADLINE = 100.0
KEY = "tml-test"


@dataclass(frozen=True)
class Served:
    url: str
    port: int
    process: Any
    """A `subprocess.Popen`, or a `ForkedProcess`."""

    def end(self) -> tuple[int, str]:
        """Exit code and everything that was printed."""
        printed = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, "".join(filter(None, printed))


Serve = Callable[..., AbstractContextManager[Served]]
ENVIRON = {name: value for name, value in os.environ.items() if name != "TINKER_API_KEY"}


def words(directory: Path, *options: str, port: int = 0) -> list[str]:
    """Of `rllm`, for a server that keeps its files in a directory."""
    where = [
        "--port",
        str(port),
        "--checkpoints",
        str(directory / "saved"),
        "--announce",
        str(directory / "announce.json"),
    ]
    return ["tinker", "serve", "--model", "tiny", *where, *options]


@contextmanager
def announced(directory: Path, process: Any) -> Iterator[Served]:
    """A process that runs these words, once it says where it listens."""
    try:
        until = time.monotonic() + DEADLINE
        while not (directory / "announce.json").exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.05)
        found = json.loads((directory / "announce.json").read_text())
        assert found["pid"] == process.pid
        yield Served(found["url"], found["port"], process)
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE)


@pytest.fixture
def serve(command_server: CommandServer, tmp_path: Path) -> Serve:
    """Starts `rllm tinker serve` in a process that need not import torch first."""

    def start(port: int = 0) -> AbstractContextManager[Served]:
        (tmp_path / "announce.json").unlink(missing_ok=True)
        process = command_server.start("rllm.cli.main", words(tmp_path, port=port), tmp_path, ENVIRON)
        return announced(tmp_path, process)

    return start


def datum(length: int = 8) -> types.Datum:
    tokens = [4 + position % 32 for position in range(length)]
    inputs: dict[str, Any] = {"target_tokens": tokens, "weights": [1.0] * length}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


def losses(trainer: Any, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        gradient = trainer.forward_backward([datum()], "cross_entropy")
        step = trainer.optim_step(types.AdamParams(learning_rate=1e-2))
        found.append(gradient.result(DEADLINE).metrics["loss:sum"])
        step.result(DEADLINE)
    return found


@pytest.mark.long
def test_training_continues_after_a_killed_server(serve: Serve) -> None:
    """The steps after the checkpoint are those of a run that was not interrupted."""
    with serve() as first:
        client = tinker.ServiceClient(base_url=first.url, api_key=KEY)
        trainer = client.create_lora_training_client(base_model="tiny", rank=4, seed=1).result(DEADLINE)
        sampler = trainer.save_weights_and_get_sampling_client().result(DEADLINE)
        losses(trainer, 2)
        saved = trainer.save_state("two").result(DEADLINE).path
        expected = losses(trainer, 2)
        # A long request is in execution when the server is killed.
        lost = trainer.forward_backward([datum(400) for _ in range(512)], "cross_entropy")
        time.sleep(0.3)
        first.process.kill()
        first.end()
        with serve(first.port) as second:
            assert second.url == first.url
            # The client's own RetryableException, which is final for training, or the refusal when it sent it again.
            with pytest.raises(Exception, match=r"expired/broken|checkpoint"):
                lost.result(DEADLINE)
            with pytest.raises(tinker.APIStatusError, match="checkpoint"):
                trainer.optim_step(types.AdamParams()).result(DEADLINE)
            prompt, params = types.ModelInput.from_ints([4]), types.SamplingParams(max_tokens=1)
            with pytest.raises(tinker.APIStatusError, match="checkpoint"):
                sampler.sample(prompt, 1, params).result(DEADLINE)
            again = tinker.ServiceClient(base_url=second.url, api_key=KEY)
            resumed = again.create_training_client_from_state_with_optimizer(saved).result(DEADLINE)
            assert losses(resumed, 2) == pytest.approx(expected, rel=1e-6)
            again.close("success").result(DEADLINE)
        client.close("errored")


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_server_cleanly(serve: Serve, number: signal.Signals, code: int) -> None:
    with serve() as server:
        client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
        trainer = client.create_lora_training_client(base_model="tiny", rank=2).result(DEADLINE)
        tokenizer = trainer.get_tokenizer()
        assert tokenizer.decode(tokenizer.encode("lower")) == "lower"
        client.close("success").result(DEADLINE)
        server.process.send_signal(number)
        returned, printed = server.end()
    assert returned == code
    assert "Traceback" not in printed
    assert f"TINKER_BASE_URL={server.url}" in printed


@pytest.mark.long
def test_a_server_ends_with_its_parent(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rllm.cli.main", *words(tmp_path, "--end-with-stdin")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRON,
    )
    with announced(tmp_path, process) as server:
        assert server.process.stdin is not None
        server.process.stdin.close()
        server.process.stdin = None
        returned, printed = server.end()
    assert returned == 0
    assert "Traceback" not in printed


def test_a_taken_port_is_said_before_the_model_is_loaded(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with expect_error(ConfigError, "port-unavailable", port):
            group.main(["serve", "--model", "missing-model", "--port", str(port)], standalone_mode=False)


def test_other_machines_need_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with expect_error(ConfigError, "missing-api-key", "0.0.0.0"):
        group.main(["serve", "--model", "tiny", "--host", "0.0.0.0"], standalone_mode=False)
    with expect_error(ConfigError, "bad-api-key", "tml-"):
        group.main(["serve", "--model", "tiny", "--api-key", "secret"], standalone_mode=False)


def test_an_unknown_model_is_said(tmp_path: Path) -> None:
    with expect_error(ConfigError, "model-not-loadable", "./nowhere"):
        group.main(
            ["serve", "--model", "./nowhere", "--port", "0", "--checkpoints", str(tmp_path)], standalone_mode=False
        )


def test_float16_is_refused_and_the_types_that_can_be_trained_are_named() -> None:
    result = CliRunner().invoke(group, ["serve", "--model", "./nowhere", "--dtype", "float16"])
    assert result.exit_code == 2
    check_values(result.output, "'float16'", "'float32', 'bfloat16'")


def test_help_teaches_by_example() -> None:
    shown = " ".join(CliRunner().invoke(group, ["serve", "--help"]).output.split())
    assert "rllm tinker serve --model tiny" in shown
    assert "TINKER_BASE_URL" in shown
    assert "Other users" in shown
    for option in ("--max-merged", "--kv-cache-gib"):
        assert option in shown
