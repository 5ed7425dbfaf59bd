"""The server of ``tinker_base_url=local``: a process of its own, started and stopped by the run.

The run holds its standard input: however the run ends, the server's input closes, and it ends too.
"""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from rllm_core.errors import BackendError
from rllm_serving.announcement import EndedError, announced_url
from rllm_serving.child_process import ChildProcess
from rllm_serving.process_directory import ProcessDirectory
from rllm_tinker.health import HttpHealth

STOPPING = 15.0
"""Seconds that the server has to end before it is killed."""
MERGED, SNAPSHOTS, CACHE_GIB = 2, 32, 1.0
"""Defaults of ``rllm tinker serve``: versions ready to be sampled from, versions held, and GiB of cache for each of the
former."""
LOG_LINES = 8
"""Last lines of its output that an error shows."""


@dataclass(eq=False)
class LocalServer:
    """A running server."""

    url: str
    api_key: str
    process: ChildProcess
    files: ProcessDirectory
    checkpoints: Path
    """The folder of what it keeps, absolute."""

    @classmethod
    async def start(cls, *, model: str, checkpoints: str, seed: int, longest: float, versions: int = 1) -> LocalServer:
        """Start one and wait until it listens.

        Args:
            model: `tiny`, a folder or a hub id.
            checkpoints: folder for what the run saves.
            seed: of the run, for the weights of `tiny`.
            longest: seconds that it has to load its model.
            versions: most versions of the weights that are sampled from at a time.

        Raises:
            BackendError: it ends instead, or takes longer.
        """
        files = ProcessDirectory("rllm-tinker-")
        announcement, log = files.path / "address.json", files.path / "server.log"
        # Nobody else on this machine is to use it, and a key on a command line would be seen.
        key = f"tml-{secrets.token_hex(16)}"
        serve = [sys.executable, "-m", "rllm.cli.main", "tinker", "serve"]
        what = ["--model", model, "--checkpoints", checkpoints, "--seed", str(seed)]
        where = ["--port", "0", "--announce", str(announcement), "--end-with-stdin"]
        process = ChildProcess.spawn([*serve, *what, *where, *room_for(versions)], log, {"TINKER_API_KEY": key})
        server = cls("", key, process, files, Path(checkpoints).expanduser().absolute())
        try:
            server.url = await announced_url(announcement, server.process, longest)
        except EndedError:
            how = server._how()
            server.process.kill()  # what it may have started
            files.keep()
            raise BackendError(
                "process-not-started",
                f"The local Tinker server could not be started: {how}.",
                "Try it by itself: `rllm tinker serve --model MODEL`.",
            ) from None
        except TimeoutError as error:
            said = server._last_words()
            await server.stop()
            raise BackendError(
                "process-timeout",
                f"The local Tinker server has not started within {longest:g} s. It said: {said}.",
                "Raise tinker_timeout, or name a model folder of this machine.",
            ) from error
        except BaseException:
            await server.stop()
            raise
        return server

    async def problem(self) -> str | None:
        """What is wrong with it just now; None: it answers.

        Raises:
            BackendError: it has ended.
        """
        if self.process.exit_code is not None:
            raise BackendError(
                "process-died",
                f"The run's local Tinker server has ended: {self._how()}.",
                "Go on from the newest checkpoint with --resume, which starts another one.",
            )
        return await HttpHealth(self.url).problem()

    async def stop(self) -> None:
        """Close its input, wait, and kill it if it does not end. What it wrote is kept only if it ended by itself."""
        by_itself = self.process.exit_code is not None
        await self.process.end(STOPPING)
        if by_itself:
            self.files.keep()
        else:
            self.files.close()

    def _how(self) -> str:
        process = self.process
        return f"exit code {process.exit_code}; its last words ({process.log}): {self._last_words()}"

    def _last_words(self) -> str:
        return " | ".join(self.process.last_lines(LOG_LINES)) or "nothing"


def room_for(versions: int) -> list[str]:
    """Options with which none of so many versions waits for another, in the memory that caches have anyway."""
    merged = max(MERGED, versions)
    caches = ["--kv-cache-gib", str(MERGED * CACHE_GIB / merged)]
    # One more: it is saved before the oldest is used for the last time.
    return ["--max-merged", str(merged), "--max-snapshots", str(max(SNAPSHOTS, versions + 1)), *caches]
