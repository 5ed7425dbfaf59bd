"""Run an agent's program in a sandbox, and after it the tests of its task."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rllm.builtin.sandboxes.process import lines_at_end
from rllm.builtin.sandboxes.task_tests import REWARD, run_tests
from rllm.builtin.tasks.task_directories import INSTRUCTION, TASK_DIRECTORY, TaskFacts, without_facts
from rllm_core.contracts.sandbox import Sandbox, SandboxSetup
from rllm_core.errors import RolloutError
from rllm_core.notices import warn_once
from rllm_core.rollout.waits import Wait
from rllm_gateway.running.runners import LONGEST, URL, Outcome, parse_result
from rllm_gateway.sessions.link import RewardSource

TIMED_OUT = 124
"""Exit code of an agent that was stopped at its time limit, as from the program ``timeout``."""
VARIABLE = "RLLM_INSTRUCTION"
"""Environment variable with the instruction of a task."""
INSTRUCTION_WORD = "{instruction}"
BASE_URL = "{OPENAI_BASE_URL}"
"""Part of an argument that is replaced by the value of this environment variable."""
SECONDS_TO_PREPARE = 60.0


@dataclass(frozen=True)
class Program:
    """A command that is started in sandboxes, and the files and directories of the machine that it needs."""

    command: tuple[str, ...]
    readable: tuple[Path, ...]

    @classmethod
    def from_command(cls, command: Sequence[str]) -> Program:
        """Return the command with absolute paths of its files.

        A program in a virtual environment is started there. Other programs are searched in the sandbox.
        """
        found = shutil.which(command[0])
        directories = [] if found is None else _virtual_environment(Path(found).absolute())
        words = [found if directories and found else command[0], *command[1:]]
        files = {word: Path(word).expanduser().absolute() for word in words if Path(word).expanduser().is_file()}
        single_files = [
            file for file in files.values() if not any(file.is_relative_to(directory) for directory in directories)
        ]
        return cls(tuple(str(files.get(word, word)) for word in words), (*directories, *single_files))


def _virtual_environment(program: Path) -> list[Path]:
    """Return the virtual environment of a program, and the directory of its Python. Empty if it is in none.

    A program of npm has the directory in which npm has installed it, and the directory of Node.
    """
    for path in (program, program.resolve()):
        environment = path.parent.parent
        if (environment / "pyvenv.cfg").is_file():
            return [environment, (environment / "bin" / "python").resolve().parent.parent]
    modules = next((path for path in program.resolve().parents if path.name == "node_modules"), None)
    node = shutil.which("node")
    if modules is not None and node is not None:
        return [program.parent.parent, modules, Path(node).resolve().parent.parent]
    return []


class SandboxRunner:
    """Starts the user's program in a new sandbox for every rollout. Its standard input is the task as a JSON object.

    If the task is a directory (environment ``tasks``), the sandbox contains the files of its ``environment/``. The
    tests run after the agent has ended, also if it failed or was stopped. Their reward is the rollout's result.
    """

    other_reward_source: RewardSource = "program"
    """The source of rewards of tasks without tests."""

    def __init__(
        self,
        command: Sequence[str],
        start: Callable[[SandboxSetup], Awaitable[Sandbox]],
        seconds: float,
    ) -> None:
        """Start nothing yet.

        Args:
            command: the program and its arguments. `INSTRUCTION_WORD` is replaced by the task's instruction, and
                `BASE_URL` by the gateway's URL.
            start: starts a sandbox.
            seconds: time limit of agents whose task has none.
        """
        self._program = Program.from_command(command)
        self._start = start
        self._seconds = seconds

    @property
    def readable(self) -> tuple[Path, ...]:
        """Files and directories of the machine that the program needs, so its commands can read them."""
        return self._program.readable

    def reward_source(self, task: Mapping[str, Any]) -> RewardSource:
        """Return ``tests`` if the task has tests."""
        return "tests" if TASK_DIRECTORY in task else self.other_reward_source

    async def run(self, task: Mapping[str, Any], environment: Mapping[str, str], reward_key: str = "") -> Outcome:
        """Run the agent and the tests. If this is cancelled, delete the sandbox. The agent gets no reward key.

        Raises:
            RolloutError: the tests gave no reward, or the instruction is too long for an argument.
        """
        instruction = str(task.get(INSTRUCTION, ""))
        command = self._command(instruction, environment)
        # A longer instruction is passed only on standard input.
        variables = {VARIABLE: instruction} if _is_short(instruction) else {}
        facts = TaskFacts.model_validate(task[TASK_DIRECTORY]) if TASK_DIRECTORY in task else None
        setup = SandboxSetup() if facts is None else facts.setup
        with Wait("sandbox", "start"):
            sandbox = await self._start(replace(setup, readable=self.readable))
        try:
            if facts is not None:
                with Wait("sandbox", "files"):
                    await _prepare(sandbox, Path(facts.path))
            result = await sandbox.run(
                command,
                seconds=self._seconds if facts is None else facts.agent_seconds,
                environment={**self._variables(environment), **variables},
                stdin=self._stdin(task).encode(),
                port=urlsplit(environment[URL]).port,
            )
            with Wait("sandbox", "tests"):
                tested = None if facts is None else await run_tests(sandbox, facts, result)
        finally:
            with Wait("sandbox", "stop"):
                await sandbox.stop()
        output = lines_at_end(result.stdout)
        printed = parse_result(output) if result.exit_code == 0 else None
        reports = self.reward_source(task) == "program"
        return Outcome(
            TIMED_OUT if result.exit_code is None else result.exit_code,
            printed if reports else tested,
            lines_at_end(result.stderr) or output,
            timed_out=result.exit_code is None,
            rejected_reward=not reports and printed is not None and REWARD in printed,
        )

    def _variables(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Return the environment variables for the program."""
        return environment

    def _stdin(self, task: Mapping[str, Any]) -> str:
        return json.dumps(without_facts(task))

    def _command(self, instruction: str, environment: Mapping[str, str]) -> list[str]:
        """Return the command with the instruction and the gateway's URL."""
        if INSTRUCTION_WORD in self._program.command and not _is_short(instruction):
            raise RolloutError(
                "instruction-too-long",
                f"The instruction has {len(instruction.encode())} bytes. An argument may have {LONGEST}.",
                f"Shorten instruction.md, or use a command without {INSTRUCTION_WORD}, which reads standard input.",
            )
        url = environment.get(BASE_URL.strip("{}"), "")
        words = (word.replace(BASE_URL, url) for word in self._program.command)
        return [instruction if word == INSTRUCTION_WORD else word for word in words]

    async def close(self) -> None:
        """Do nothing, because sandboxes end with their rollouts."""


def _is_short(instruction: str) -> bool:
    return len(instruction.encode()) <= LONGEST


def warn_of_readable_tests(directories: Iterable[str], readable: Iterable[str | Path]) -> None:
    """Warn if the agent's commands can read a directory of tasks on this machine, and so their tests."""
    places = {place: Path(place).expanduser().resolve() for place in readable}
    for directory in directories:
        found = [place for place, path in places.items() if Path(directory).expanduser().resolve().is_relative_to(path)]
        if found:
            warn_once(
                f"the sandbox shows {found[0]}, which contains {directory}, so agents can read their tests. "
                "Move the tasks to a different directory"
            )


async def _prepare(sandbox: Sandbox, task: Path) -> None:
    """Copy the task's files into the sandbox, without the Dockerfile, which is not run."""
    if (task / "environment").is_dir():
        await sandbox.copy_in(task / "environment", "/app")
        if (task / "environment" / "Dockerfile").is_file():
            await sandbox.run(["rm", "Dockerfile"], seconds=SECONDS_TO_PREPARE)
