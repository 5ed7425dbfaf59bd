"""`code`: take the program from a response, and run a task's tests on it in a sandbox."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rllm.builtin.code_reward import in_sandbox
from rllm.builtin.code_reward.programs import beginning_of, defined_names, read_program
from rllm.builtin.code_reward.tests_of_tasks import CallTest, CodeTest, StreamTest, Test, read_tests
from rllm.builtin.tasks.answers import NoAnswerError, right_or_wrong
from rllm_core.contracts.params import Params
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.contracts.sandbox import CommandResult, Sandbox, SandboxSetup
from rllm_core.notices import warn_once
from rllm_core.rollout.waits import Wait


class CodeParams(Params):
    """Options of the reward ``code``."""

    column: str | None = None
    """Column with the tests. Without it: the first of tests, test_list, test_cases, input_output, test,
    verification_info, reward_model.ground_truth, public_test_cases with private_test_cases."""
    sandbox: Literal["bwrap", "local", "docker", "podman"] = "bwrap"
    """Sandbox of the program. `local` isolates nothing: the program may do all that you may do."""
    image: str = "python:3.12"
    """Image of the sandboxes `docker` and `podman`."""
    seconds: float = Field(10.0, gt=0, le=600)
    """Time limit of a test."""
    memory_mb: int = Field(1024, ge=64)
    """Memory limit of a program."""
    partial: bool = False
    """Reward the share of passed tests. Otherwise only all tests give 1."""
    processes: int = Field(4, ge=1, le=256)
    """Maximum number of concurrent sandboxes."""


SECONDS_TO_START = 30.0
SOLUTION, CALLER = "solution.py", "in_sandbox.py"


class Code:
    """Reward of 1 if a program passes all tests, or the share of passed tests.

    No process of the program decides about a test. Outputs of a program are compared in this process. Tests that call
    functions run in a process that the program cannot reach: its functions run in a second process, which returns
    their results as text.
    """

    def __init__(self, params: CodeParams) -> None:
        self._params = params
        self._free = asyncio.Semaphore(params.processes)
        self._start = _starter(params)

    async def __call__(self, rollout: Rollout) -> Score:
        try:
            tests = read_tests(rollout.data, self._params.column)
        except NoAnswerError as error:
            return Score(value=None, feedback=str(error))
        program = read_program(rollout.response.content, tests, beginning_of(rollout.data))
        if program is None:
            return right_or_wrong(False, None, "the response has no Python program")
        async with self._free:
            with Wait("sandbox", "start"):
                sandbox = await self._start(
                    SandboxSetup(memory=self._params.memory_mb << 20, readable=_python_directories())
                )
            try:
                if not sandbox.isolates:
                    warn_once("sandbox local isolates nothing, so a program can forge its reward. Use sandbox: bwrap")
                with Wait("sandbox", "tests"):
                    failures = await self._run(sandbox, program, tests)
            finally:
                await sandbox.stop()
        share = 1 - len(failures) / len(tests)
        return Score(
            value=share if self._params.partial else float(not failures),
            correct=not failures,
            extracted=program,
            metrics={"unreadable": 0.0, **({"passed": share} if self._params.partial else {})},
            feedback=failures[0] if failures else "",
        )

    async def _run(self, sandbox: Sandbox, program: str, tests: Sequence[Test]) -> list[str]:
        """Return the reason of each failed test. Without partial rewards, the first failure fails all."""
        with tempfile.TemporaryDirectory(prefix="rllm-code-") as name:
            (Path(name) / SOLUTION).write_text(program, encoding="utf-8")
            (Path(name) / CALLER).write_text(_read_in_sandbox(), encoding="utf-8")
            await sandbox.copy_in(Path(name), "/app")
        names = sorted(defined_names(program))
        failures = []
        for number, test in enumerate(tests, 1):
            if failure := await self._fail(sandbox, test, f"test-{number}", names):
                failures.append(f"test {number} of {len(tests)}: {failure}")
                if not self._params.partial:
                    break
        return failures

    async def _fail(self, sandbox: Sandbox, test: Test, name: str, defined: Sequence[str]) -> str:
        """Return the reason why a test fails. Empty if it passes."""
        if isinstance(test, StreamTest):
            command = [_interpreter(self._params), f"{sandbox.root}/app/{SOLUTION}"]
            result = await sandbox.run_untrusted(
                command, seconds=self._params.seconds, stdin=test.stdin.encode(errors="replace")
            )
            if result.exit_code != 0:
                return _describe_end(result, self._params.seconds)
            printed = result.stdout.decode(errors="replace")
            return "" if _lines(printed) == _lines(test.stdout) else f"printed {printed!r:.80}, not {test.stdout!r:.80}"
        return await self._call(sandbox, test, {"name": name, "defined": defined})

    async def _call(self, sandbox: Sandbox, test: CallTest | CodeTest, options: dict[str, Any]) -> str:
        """Run a test of functions: the tester as `run`, and the program's functions as `run_untrusted`."""
        python = _interpreter(self._params)
        directory = f"{sandbox.root}/app"
        question = {"seconds": self._params.seconds, "directory": directory, **options, **asdict(test)}
        tester = asyncio.ensure_future(
            sandbox.run(
                [python, "-I", "-c", _read_in_sandbox()],
                seconds=self._params.seconds + SECONDS_TO_START,
                stdin=json.dumps(question).encode(),
            )
        )
        caller = asyncio.ensure_future(
            sandbox.run_untrusted(
                [python, f"{directory}/{CALLER}", directory, options["name"]],
                seconds=self._params.seconds + SECONDS_TO_START,
            )
        )
        try:
            result = await tester
        finally:
            tester.cancel()
            caller.cancel()
            await asyncio.gather(tester, caller, return_exceptions=True)
        try:
            verdict = json.loads(result.stdout)
        except ValueError:
            return _describe_end(result, self._params.seconds)
        return str(verdict["failure"])


def _read_in_sandbox() -> str:
    return Path(in_sandbox.__file__).read_text(encoding="utf-8")


def _lines(text: str) -> list[str]:
    """Return the lines of an output, without white space at the end of lines and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _describe_end(result: CommandResult, seconds: float) -> str:
    if result.exit_code is None:
        return f"not finished after {seconds:g} s"
    last = result.stderr.decode(errors="replace").strip().splitlines()
    return f"exit code {result.exit_code}: {last[-1] if last else 'no error message'}"


def _interpreter(params: CodeParams) -> str:
    """Return the Python of this process if the sandbox shows this machine's programs, and the image's otherwise."""
    return str(Path(sys.executable).resolve()) if params.sandbox in ("bwrap", "local") else "python3"


def _python_directories() -> tuple[Path, ...]:
    return tuple(dict.fromkeys(Path(each).resolve() for each in (sys.base_prefix, sys.base_exec_prefix)))


def _starter(params: CodeParams) -> Any:
    if params.sandbox == "bwrap":
        from rllm.builtin.sandboxes.bwrap import BwrapParams, start_bwrap

        return partial(start_bwrap, BwrapParams())
    if params.sandbox == "local":
        from rllm.builtin.sandboxes.local import start_local

        return partial(start_local, None)
    from rllm.builtin.sandboxes import container
    from rllm.builtin.sandboxes.container import ContainerParams

    return partial(getattr(container, f"start_{params.sandbox}"), ContainerParams(image=params.image))
