"""The server of ``tinker_base_url=local``: a process of its own, started and stopped by the run.

The run holds its standard input: however the run ends, the server's input closes, and it ends too.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rllm_core.errors import BackendError
from rllm_tinker.health import HttpHealth

POLL = 0.05
STOPPING = 15.0
"""Seconds that the server has to end before it is killed."""
LOG_LINES = 8
"""Last lines of its output that an error shows."""


@dataclass(eq=False)
class LocalServer:
    """A running server."""

    url: str
    api_key: str
    process: asyncio.subprocess.Process
    log: Path
    """What it has written."""
    checkpoints: Path
    """The folder of what it keeps, absolute."""

    @classmethod
    async def start(cls, *, model: str, checkpoints: str, seed: int, longest: float) -> LocalServer:
        """Start one and wait until it listens.

        Args:
            model: `tiny`, a folder or a hub id.
            checkpoints: folder for what the run saves.
            seed: of the run, for the weights of `tiny`.
            longest: seconds that it has to load its model.

        Raises:
            BackendError: it ends instead, or takes longer.
        """
        folder = Path(tempfile.mkdtemp(prefix="rllm-tinker-"))
        announcement, log = folder / "address.json", folder / "server.log"
        # Nobody else on this machine is to use it, and a key on a command line would be seen.
        key = f"tml-{secrets.token_hex(16)}"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "rllm_core.cli.main", "tinker", "serve"),
                *("--model", model, "--checkpoints", checkpoints, "--seed", str(seed), "--port", "0"),
                *("--announce", str(announcement), "--end-with-stdin"),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=os.environ | {"TINKER_API_KEY": key},
                # Ctrl-C in a terminal goes to every process in front; the run still needs this one to save.
                start_new_session=True,
            )
        server = cls("", key, process, log, Path(checkpoints).expanduser().absolute())
        try:
            until = time.monotonic() + longest
            while not announcement.exists():
                server._raise_if_ended()
                if time.monotonic() > until:
                    raise BackendError(
                        f"The local Tinker server has not started within {longest:g} s. It said: "
                        f"{server._last_words()}.",
                        "Raise tinker_timeout, or name a model folder of this machine.",
                    )
                await asyncio.sleep(POLL)
        except BaseException:
            await server.stop()
            raise
        server.url = json.loads(announcement.read_text(encoding="utf-8"))["url"]
        return server

    async def problem(self) -> str | None:
        """What is wrong with it just now; None: it answers.

        Raises:
            BackendError: it has ended.
        """
        if self.process.returncode is not None:
            raise BackendError(
                f"The run's local Tinker server has ended: {self._how()}.",
                "Go on from the newest checkpoint with --resume, which starts another one.",
            )
        return await HttpHealth(self.url).problem()

    async def stop(self) -> None:
        """Close its input, wait, and kill it if it does not end. What it wrote is kept only if it ended by itself."""
        by_itself = self.process.returncode is not None
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), STOPPING)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        if not by_itself:
            shutil.rmtree(self.log.parent, ignore_errors=True)

    def _raise_if_ended(self) -> None:
        if self.process.returncode is not None:
            raise BackendError(
                f"The local Tinker server could not be started: {self._how()}.",
                "Try it by itself: `rllm tinker serve --model MODEL`.",
            )

    def _how(self) -> str:
        return f"exit code {self.process.returncode}; its last words ({self.log}): {self._last_words()}"

    def _last_words(self) -> str:
        said = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LOG_LINES:]
        return " | ".join(said) or "nothing"
