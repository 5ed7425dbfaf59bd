"""The command `rllm tinker serve`: in its own process with the real model `tiny`, and what it rejects at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from expecting import expect_error
from forked import CommandServer

from rllm_core.errors import ConfigError
from rllm_tinker_server.command import tinker as group

from .conftest import DEADLINE, KEY


@pytest.mark.smoke
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_server_cleanly(
    command_server: CommandServer, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    import tinker

    announcement = tmp_path / "announce.json"
    words = ["tinker", "serve", "--model", "tiny", "--port", "0", "--checkpoints", str(tmp_path / "saved")]
    environ = {name: value for name, value in os.environ.items() if name != "TINKER_API_KEY"}
    process = command_server.start("rllm.cli.main", [*words, "--announce", str(announcement)], tmp_path, environ)
    try:
        until = time.monotonic() + DEADLINE
        while not announcement.exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.05)
        found = json.loads(announcement.read_text())
        assert found["pid"] == process.pid
        client = tinker.ServiceClient(base_url=found["url"], api_key=KEY)
        trainer = client.create_lora_training_client(base_model="tiny", rank=2).result(DEADLINE)
        tokenizer = trainer.get_tokenizer()
        assert tokenizer.decode(tokenizer.encode("lower")) == "lower"
        client.close("success").result(DEADLINE)
        process.send_signal(number)
        printed = "".join(process.communicate(timeout=DEADLINE))
    finally:
        process.kill()
    assert process.returncode == code
    assert "Traceback" not in printed
    assert f"TINKER_BASE_URL={found['url']}" in printed


def test_used_port_is_reported_before_model_loads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with expect_error(ConfigError, "port-unavailable", port):
            group.main(["serve", "--model", "missing-model", "--port", str(port)], standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "code", "value"),
    [
        (["tiny", "--host", "0.0.0.0"], "missing-api-key", "0.0.0.0"),
        (["tiny", "--api-key", "secret"], "bad-api-key", "tml-"),
        (["./nowhere", "--port", "0"], "model-not-loadable", "./nowhere"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: str, value: str
) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with expect_error(ConfigError, code, value):
        group.main(["serve", "--checkpoints", str(tmp_path), "--model", *words], standalone_mode=False)
