"""Bad settings of a user are reported before training: the value, its origin and the fix."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from expecting import check_printed
from tinker_in_process import RunningServer

from .conftest import Rllm

ONE_STEP = "rllm.trainer.total_batches=1"
RUN = Path("runs", "rllm-training", "guess-1")


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of a port that is taken, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


class _Page(BaseHTTPRequestHandler):
    """Any web server."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"hi")

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def web_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_no_key(train: Rllm, server: RunningServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TINKER_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    ended = train(server.url)
    assert ended.code == 2
    remedies = ("export TINKER_API_KEY=tml-…", "tinker_base_url=local")
    check_printed(ended.error, "missing-api-key", server.url, *remedies)


def test_a_malformed_key(train: Rllm, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "sk-secret")
    ended = train(server.url)
    assert ended.code == 2
    check_printed(ended.error, "bad-api-key", "TINKER_API_KEY", "tml-")
    assert "sk-secret" not in ended.output + ended.errors


def test_nobody_listens(train: Rllm, nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm_tinker.health.REFUSED", 1000.0)
    ended = train(nobody, "tinker_connect_timeout=1")
    assert ended.code == 1
    remedies = ("tinker_base_url", "`rllm tinker serve`", "tinker_base_url=local")
    check_printed(ended.error, "service-unreachable", nobody, *remedies)


def test_other_web_server_fails_without_a_wait(train: Rllm, web_server: str) -> None:
    ended = train(web_server, "tinker_connect_timeout=1000")
    assert ended.code == 1
    check_printed(ended.error, "service-unreachable", web_server, "/api/v1/healthz", 200, "tinker_base_url")


def test_an_unknown_model(train: Rllm, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_for: list[Any] = []
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *name, **_: looked_for.append(name))
    ended = train(server.url, "model.name=some/model")
    assert ended.code == 1
    assert looked_for == []
    check_printed(ended.error, "service-rejected-request", "'some/model'", 404, "'tiny'", "tinker_base_url")


MISSING = "tinker://7c9e6679-7425-40de-944b-e07fc1f90ae7:train:0/weights/none"
RESUME = "training.resume_from_tinker_id"
NOT_TRAINED = ("model.train_unembed=false", "model.train_attn=false", "model.train_mlp=false")
EXAMPLE = "http://127.0.0.1:8017"
ZEROS = ("training.learning_rate=0", "model.lora_rank=0", "tinker_connect_timeout=0")


@pytest.mark.parametrize(
    ("words", "exit_code", "code", "values"),
    [
        (["tinker_base_url=127.0.0.1:8017"], 2, "bad-address", ["tinker_base_url", "'127.0.0.1:8017'", EXAMPLE]),
        (["tinker_base_url=http://"], 2, "bad-address", ["tinker_base_url", "'http://'", "http://127.0.0.1:8017"]),
        (["tinker_base_url=http://h:99999"], 2, "bad-address", ["tinker_base_url", "'http://h:99999'", EXAMPLE]),
        (["tinker_base_url=null"], 2, "bad-address", ["TINKER_BASE_URL", "'localhost:8017'"]),
        (["tinker_base_url=local", "model.name=./nowhere"], 2, "model-not-loadable", ["'./nowhere'", "`tiny`"]),
        ([f"{RESUME}={MISSING}"], 1, "service-rejected-request", [MISSING, "404"]),
        ([f"{RESUME}=7c9e6679:train:0"], 1, "service-rejected-request", ["7c9e6679:train:0", "404"]),
        ([f"{RESUME}=tinker://run/sampler_weights/x"], 2, "bad-tinker-checkpoint", ["tinker://RUN/weights/NAME"]),
        ([f"{RESUME}=a/b"], 2, "bad-tinker-checkpoint", [RESUME, "'a/b'"]),
        (["rollout_engine.renderer_name=qwen3"], 2, "wrong-value", ["renderer_name", "'qwen3'"]),
        (["training.default_local_dir=/tmp/x"], 2, "unused-key", ["training.default_local_dir", "'/tmp/x'"]),
        (NOT_TRAINED, 2, "nothing-trained", ["model.train_unembed", "model.train_attn", "model.train_mlp"]),
        (["rollout_engine.reasoning_effort=high"], 2, "no-thinking-switch", ["reasoning_effort", "high"]),
        (ZEROS, 2, "wrong-value", ["training.learning_rate", "model.lora_rank", "tinker_connect_timeout"]),
        (["rllm.algorithm.loss_map={agent: gspoo, nobody: ppo}"], 2, "unknown-plugin", ["loss_map.agent", "'gspoo'"]),
    ],
)
def test_bad_settings_end_before_training(
    train: Rllm,
    server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    words: Sequence[str],
    exit_code: int,
    code: str,
    values: list[str],
) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "localhost:8017")
    ended = train(server.url, ONE_STEP, *words)
    assert ended.code == exit_code
    check_printed(ended.error, code, *values)


@pytest.mark.smoke
def test_run_starts_from_newest_checkpoint_of_training_run(train: Rllm, server: RunningServer, tmp_path: Path) -> None:
    assert train(server.url, ONE_STEP, "training.max_length=64").code == 0
    path = json.loads((tmp_path / RUN / "checkpoints/latest/backend/tinker.json").read_text())["path"]
    training_run = path.removeprefix("tinker://").partition("/")[0]
    for resume in (path, training_run):
        ended = train(server.url, ONE_STEP, f"training.resume_from_tinker_id={resume}", "--overwrite")
        assert ended.code == 0, ended.errors


@pytest.mark.long
def test_other_temperature_requires_recomputed_log_probs(train: Rllm, server: RunningServer) -> None:
    ended = train(server.url, ONE_STEP, "sampling.train.temperature=0.7")
    assert ended.code == 2
    bypass = "rllm.algorithm.rollout_correction.bypass_mode=false"
    check_printed(ended.error, "bad-sampling-parameter", "sampling.train.temperature", 0.7, bypass)
    made = train(server.url, ONE_STEP, "sampling.train.temperature=0.7", bypass, "--overwrite")
    assert made.code == 0, made.errors


@pytest.mark.smoke
def test_kl_term_and_role_loss_are_computed(train: Rllm, server: RunningServer, tmp_path: Path) -> None:
    loss = ("rllm.algorithm.kl_beta=0.01", "rllm.algorithm.loss_map={agent: gspo}")
    words = (*loss, "training.num_minibatches=1", "training.num_epochs=1")
    ended = train(server.url, "rllm.trainer.total_batches=2", *words)
    assert ended.code == 0, ended.errors
    lines = [json.loads(line) for line in (tmp_path / RUN / "metrics.jsonl").read_text().splitlines()]
    found = [line["actor/kl_ref"] for line in lines if "actor/kl_ref" in line]
    assert len(found) == 2
    assert abs(found[0]) < 1e-6 < found[1], "the reference is the model that the run starts with"
