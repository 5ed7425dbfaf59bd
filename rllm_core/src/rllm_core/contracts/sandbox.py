"""Sandboxes: places in which the commands of agents and of tests run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rllm_core.contracts.plugin import ParamsT, Plugin


@dataclass(frozen=True, kw_only=True)
class SandboxSetup:
    """Limits of one sandbox, and the directories that it shares with the machine."""

    memory: int = 2 << 30
    """Bytes of memory that all processes of a command may use together, shared memory included."""
    disk: int = 1 << 30
    """Bytes of files that the sandbox may contain. Files in ``/logs`` and ``/tests`` may have as many again."""
    processes: int = 256
    """Maximum number of concurrent processes and threads of a command."""
    readable: tuple[Path, ...] = ()
    """Directories of the machine that commands may read, under the same path."""


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """The result of a command in a sandbox."""

    exit_code: int | None
    """None if the command was stopped at its time limit."""
    stdout: bytes
    """Standard output. If it is longer than 16 MiB, only its end."""
    stderr: bytes


class Sandbox(ABC):
    """One started sandbox. It belongs to one rollout. Calls of `run` come one after the other.

    Commands may write to ``/app``, which is their working directory, and to ``/tmp``, ``/logs``, ``/tests`` and
    ``$HOME``. These files stay until `stop`. No process stays after the end of its command.
    """

    root: str = ""
    """Prefix of all paths in the sandbox. It is empty if the sandbox has its own file system. Commands receive it as
    the environment variable ``SANDBOX_ROOT``."""
    isolates: bool = True
    """False if a command can change files or processes outside the sandbox, or the files and processes of tests."""

    @abstractmethod
    async def run(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        port: int | None = None,
    ) -> CommandResult:
        """Run a command to its end, or kill it after `seconds`. If this is cancelled, kill the command.

        The command has no network, except for `port` of the machine's address 127.0.0.1, which it reaches under the
        same address. A program that does not exist gives the exit code 127.
        """

    @abstractmethod
    async def run_untrusted(self, command: Sequence[str], *, seconds: float, stdin: bytes = b"") -> CommandResult:
        """Run a command of the agent while `run` runs the tests. Several of these can run at the same time.

        It has the limits of `run`, but no port. It can change ``/app``. It sees no process of `run`, and no file of
        ``/logs``, ``/tests`` and the ``/tmp`` of `run`.
        """

    @abstractmethod
    async def copy_in(self, source: Path, target: str) -> None:
        """Replace the directory `target` of the sandbox with a copy of the directory `source`."""

    @abstractmethod
    async def stop(self) -> None:
        """Delete the sandbox with all its files. Called once."""


@dataclass(frozen=True, kw_only=True)
class SandboxPlugin(Plugin[ParamsT]):
    """A plugin spec that offers a sandbox. Users choose it with ``--sandbox`` or ``rllm.sandbox``.

    `load` returns a coroutine function that takes the options and a `SandboxSetup`, and returns a started sandbox.

    A sandbox runs commands and copies directories. This sandbox pretends that all commands succeed::

        from rllm_core.contracts import CommandResult, Sandbox, SandboxPlugin
        from rllm_core.plugins import hookimpl

        class Pretending(Sandbox):
            async def run(self, command, *, seconds, environment=None, stdin=b"", port=None):
                return CommandResult(exit_code=0, stdout=b"", stderr=b"")

            async def run_untrusted(self, command, *, seconds, stdin=b""):
                return await self.run(command, seconds=seconds, stdin=stdin)

            async def copy_in(self, source, target): ...

            async def stop(self): ...

        async def start(params, setup):
            return Pretending()

        @hookimpl
        def rllm_sandboxes():
            yield SandboxPlugin(
                name="pretending", summary="Runs nothing.", load=lambda: start
            )
    """

    kind: ClassVar[str] = "sandbox"

    load: Callable[[], Callable[[Any, SandboxSetup], Awaitable[Sandbox]]]
