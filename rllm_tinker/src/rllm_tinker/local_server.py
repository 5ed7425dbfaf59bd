"""The server of ``tinker_base_url=local``: a separate process that the run starts and stops.

The run keeps the server's standard input open. When the run ends in any way, this input closes and the server stops.
"""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from rllm_core.errors import BackendError
from rllm_serving.child_process import ChildProcess
from rllm_serving.listening import EndedError, wait_for_url
from rllm_serving.process_directory import ProcessDirectory
from rllm_tinker.health import HttpHealth

STOPPING = 15.0
"""Seconds that the server gets to stop before it is killed."""
MERGED, SNAPSHOTS, CACHE_GIB = 2, 32, 1.0
"""Defaults of ``rllm tinker serve``: merged versions that are ready for sampling, stored versions, and GiB of cache for
each merged version."""


@dataclass(eq=False)
class LocalServer:
    """A running server."""

    url: str
    api_key: str
    process: ChildProcess
    files: ProcessDirectory
    checkpoints: Path
    """Absolute path of the server's checkpoint directory."""

    @classmethod
    async def start(cls, *, model: str, checkpoints: str, seed: int, longest: float, versions: int = 1) -> LocalServer:
        """Start a server and wait until it listens.

        Args:
            model: `tiny`, a directory or a hub id.
            checkpoints: directory for the run's saved weights.
            seed: the run's seed, which determines the weights of `tiny`.
            longest: time limit in seconds to load the model.
            versions: maximum number of weight versions that sample at the same time.

        Raises:
            BackendError: the server stops or exceeds the time limit.
        """
        files = ProcessDirectory("rllm-tinker-")
        announcement, log = files.path / "address.json", files.path / "server.log"
        # Other users of this machine must not use the server. They could read a key on the command line.
        key = f"tml-{secrets.token_hex(16)}"
        serve = [sys.executable, "-m", "rllm.cli.main", "tinker", "serve"]
        what = ["--model", model, "--checkpoints", checkpoints, "--seed", str(seed)]
        where = ["--port", "0", "--announce", str(announcement), "--end-with-stdin"]
        process = ChildProcess.spawn([*serve, *what, *where, *room_for(versions)], log, {"TINKER_API_KEY": key})
        server = cls("", key, process, files, Path(checkpoints).expanduser().absolute())
        try:
            server.url = await wait_for_url(announcement, server.process, longest)
        except EndedError:
            server.process.kill()  # also kills processes that the server started
            files.keep()
            raise BackendError(
                "process-not-started",
                f"The local Tinker server could not be started. Its log is {log}.",
                "Run it separately to see its full output: `rllm tinker serve --model MODEL`.",
                process.log_tail(),
            ) from None
        except TimeoutError as error:
            tail = process.log_tail()
            await server.stop()
            raise BackendError(
                "process-timeout",
                f"The local Tinker server did not start within {longest:g} s.",
                "Raise tinker_timeout, or set model.name to a model directory on this machine.",
                tail,
            ) from error
        except BaseException:
            await server.stop()
            raise
        return server

    async def problem(self) -> str | None:
        """Return the server's current problem. None if it answers.

        Raises:
            BackendError: the server process has ended.
        """
        if self.process.exit_code is not None:
            raise BackendError(
                "process-died",
                f"The run's local Tinker server has ended. Its log is {self.process.log}.",
                "Run the same command with --resume. It starts a new server and continues from the newest checkpoint.",
                self.process.log_tail(),
            )
        return await HttpHealth(self.url).problem()

    async def stop(self) -> None:
        """Close the server's input, wait, and kill the server if it does not stop.

        Its files are kept only if it had stopped before this call.
        """
        by_itself = self.process.exit_code is not None
        await self.process.end(STOPPING)
        if by_itself:
            self.files.keep()
        else:
            self.files.close()


def room_for(versions: int) -> list[str]:
    """Return server options with which `versions` versions can sample at the same time.

    The caches together keep the size that they have by default.
    """
    merged = max(MERGED, versions)
    caches = ["--kv-cache-gib", str(MERGED * CACHE_GIB / merged)]
    # One snapshot more, because the latest is saved before the last use of the oldest.
    return ["--max-merged", str(merged), "--max-snapshots", str(max(SNAPSHOTS, versions + 1)), *caches]
