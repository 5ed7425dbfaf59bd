"""A full disk and a killed gateway: answered calls are kept, and waiting clients get an error."""

from __future__ import annotations

import asyncio
import os
import resource
import runpy
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from expecting import check_printed, expect_error

from rllm_core.errors import BackendError
from rllm_gateway.calls import CallReader

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DEADLINE = 120
ROOM = 300_000
"""Maximum bytes of a file."""


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the function of `benchmarks/gateway.py` that starts a gateway with a policy that answers at once."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return runpy.run_path(str(BENCHMARKS / "gateway.py"))


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="limits of a different process can be set only on Linux")
def test_a_full_disk_is_an_error_of_the_rollout_and_loses_no_answer(benchmark: dict[str, Any], tmp_path: Path) -> None:
    store = tmp_path / "calls.db"
    answered: list[str] = []

    async def ask(client: httpx.AsyncClient, session: Any, words: str) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": words}]}
        headers = {"authorization": f"Bearer {session.key}"}
        return await client.post(f"{session.openai_url()}/chat/completions", json=body, headers=headers)

    async def fill() -> None:
        async with benchmark["child"]("gateway", store) as child, httpx.AsyncClient(timeout=DEADLINE) as client:
            session, bystander = await benchmark["opened"](child, "full"), await benchmark["opened"](child, "bystander")
            resource.prlimit(child.process.pid, resource.RLIMIT_FSIZE, (ROOM, resource.RLIM_INFINITY))
            while (
                answer := await ask(client, session, f"{len(answered)} " + os.urandom(5000).hex())
            ).status_code == 200:
                answered.append(answer.json()["id"].removeprefix("chatcmpl-"))
                assert len(answered) < ROOM / 5000
            assert answer.status_code == 500
            assert answer.headers["x-should-retry"] == "false"
            assert "stored" in answer.json()["error"]["message"]
            resource.prlimit(child.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            assert (await ask(client, session, "again")).status_code == 500
            assert (await ask(client, bystander, "hi")).status_code == 200
            assert (await child.link.close_session("full")).ending == "failed"
            assert (await child.link.close_session("bystander")).ending == "closed"

    asyncio.run(fill())
    with CallReader.open(store) as reader:
        stored = [f"{row.prompt_digest}{int(row.id.rpartition('-')[2]):x}" for row in reader.calls("full")]
        assert [(each.session.id, each.calls) for each in reader.sessions()] == [
            ("full", len(answered)),
            ("bystander", 1),
        ]
    assert stored == answered


LOSSES = {
    "deleted": Path.unlink,
    "replaced": lambda path: shutil.copy(path, path.with_name("copy")) and path.with_name("copy").replace(path),
    "cut off": lambda path: os.truncate(path, 0),
}


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_store_is_an_error_of_the_rollout(loss: str, benchmark: dict[str, Any], tmp_path: Path) -> None:
    store = tmp_path / "calls.db"

    async def lose() -> None:
        async with benchmark["child"]("gateway", store) as child, httpx.AsyncClient(timeout=DEADLINE) as client:
            session = await benchmark["opened"](child, "s")
            body = {"messages": [{"role": "user", "content": "hi"}]}
            url, headers = f"{session.openai_url()}/chat/completions", {"authorization": f"Bearer {session.key}"}
            assert (await client.post(url, json=body, headers=headers)).status_code == 200
            LOSSES[loss](store)
            for reason in ("open", "stored"):
                answer = await client.post(url, json=body, headers=headers)
                assert answer.status_code == 500
                assert reason in answer.json()["error"]["message"]
            assert (await child.link.close_session("s")).ending == "failed"
            with expect_error(BackendError, "gateway-failed", store):
                await benchmark["opened"](child, "next")

    asyncio.run(lose())


AGENT = """
import os, time
from openai import OpenAI

def solve(task):
    OpenAI().chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    open(f"{os.getpid()}.pid", "w").close()
    time.sleep(1000)
"""


@pytest.mark.long
def test_a_run_ends_with_the_reason_when_its_gateway_is_killed(start_forked_rllm: Any, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    words = ["train", "sum", "--agent", "agent.py:solve", "rllm.rollout.n=2", "rllm.sdk.store.path=traces.db"]
    words += ["rllm.trainer.val_before_train=false", "data.max_response_length=4", "data.train_batch_size=2"]
    run = start_forked_rllm(*words)
    while len(agents := list(tmp_path.glob("*.pid"))) < 4:
        assert run.poll() is None
        time.sleep(0.1)
    gateway = gateway_of(run.pid)
    assert "torch" not in Path(f"/proc/{gateway}/maps").read_text(), "its memory has the libraries of torch"
    os.kill(gateway, signal.SIGKILL)
    _, said = run.communicate(timeout=DEADLINE)
    assert run.returncode not in (0, -signal.SIGKILL)
    check_printed(said, "gateway-ended", "gateway")
    assert "Traceback" not in said
    with CallReader.open(tmp_path / "traces.db") as reader:
        assert [each.calls for each in reader.sessions()] == [1] * 4
    while any(Path(f"/proc/{agent.stem}").exists() for agent in agents):
        time.sleep(0.1)


def gateway_of(run: int) -> int:
    """Return the process of a run's gateway."""
    children = [int(pid) for file in Path(f"/proc/{run}/task").glob("*/children") for pid in file.read_text().split()]
    (found,) = (pid for pid in children if "rllm_gateway.child" in Path(f"/proc/{pid}/cmdline").read_text())
    return found
