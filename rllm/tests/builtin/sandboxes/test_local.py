"""Commands of the sandbox `local` end with their time limit and with the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from live_processes import is_alive

PROGRAM = """
import asyncio, sys
from rllm.builtin.sandboxes.local import start_local
from rllm_core.contracts.sandbox import SandboxSetup

async def go():
    sandbox = await start_local(None, SandboxSetup())
    command = "env -i setsid sh -c 'echo $$ > ../logs/pid; exec sleep 1000' & sleep 1000"
    print(sandbox.root, flush=True)
    result = await sandbox.run(["sh", "-c", command], seconds=float(sys.argv[1]))
    print(result.exit_code, flush=True)
    await asyncio.sleep(1000)

asyncio.run(go())
"""


@pytest.mark.long
@pytest.mark.parametrize("seconds", ["0.5", "1000"], ids=["late", "killed_program"])
def test_daemon_of_a_command_ends(seconds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", PROGRAM, seconds], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        file = Path(program.stdout.readline().strip()) / "logs" / "pid"
        while not (file.exists() and file.read_text()):
            assert program.poll() is None
        if seconds == "0.5":
            assert program.stdout.readline() == "None\n"
        program.kill()
    while is_alive(int(file.read_text())):
        pass
