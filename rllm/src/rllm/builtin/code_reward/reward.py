"""The reward `code`: find the program in a response, and run a task's tests on it in a sandbox."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rllm.builtin.code_reward import in_sandbox
from rllm.builtin.code_reward.in_sandbox import find_functions
from rllm.builtin.code_reward.tests_of_tasks import CallTest, CodeTest, StreamTest, Test, read_tests
from rllm.builtin.tasks.answers import NoAnswerError, right_or_wrong
from rllm.builtin.tasks.final_answers import cut_reasoning
from rllm_core.contracts.params import Params
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.contracts.sandbox import CommandResult, Sandbox, SandboxSetup
from rllm_core.notices import warn_once
from rllm_core.rollout.waits import Wait

FENCE = re.compile(r"(?P<indent>\s*(?:(?:[-*+]|\d+[.)])\s+)?)(?P<fence>`{3,}|~{3,})[ \t{.]*(?P<language>\w*)[^`]*")
"""The first line of a block of code in Markdown. It may be in an item of a list."""
PYTHON = re.compile(r"(py|python)\d*", re.IGNORECASE)


def read_program(content: str, tests: Sequence[Test] = (), beginning: str = "") -> str | None:
    """Return the Python program of a response, or None.

    It is the last block of code with the language Python. If no block has it, it is the last block without a language.
    If tests call functions, it is the block that defines most of these functions. A response without any block is a
    program itself if it is valid Python. The reasoning is not read.

    Args:
        content: the response.
        tests: the tests, which call functions of the program.
        beginning: the start of a function. A program that is only its indented body gets this start.
    """
    content = cut_reasoning(content).encode(errors="replace").decode()
    blocks = _blocks(content)
    tagged = [code for language, code in blocks if PYTHON.fullmatch(language)]
    untagged = [code for language, code in blocks if not language]
    # The first of equally good programs in this order is chosen.
    programs = [*reversed(tagged), *reversed(untagged)] if blocks else [content]
    if not programs:
        return None
    if len(programs) > 1:
        names = [defined_names(code) for code in programs]
        wanted = set[str]().union(*(_functions(test, set().union(*names)) for test in tests))
        program = max(zip(programs, names, strict=True), key=lambda each: len(each[1] & wanted))[0]
    else:
        program = programs[0]
    if _parse(program) is None and _parse(beginning + program) is not None:
        return beginning + program
    return program if blocks or getattr(_parse(program), "body", None) else None


def defined_names(program: str) -> set[str]:
    """Return the names that a program defines at its top level, and the methods of its class ``Solution``."""
    names: set[str] = set()
    waiting: list[ast.AST] = [_parse(program) or ast.Module([], [])]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            is_solution = isinstance(node, ast.ClassDef) and node.name == "Solution"
            waiting += node.body if is_solution else []
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        waiting += ast.iter_child_nodes(node)
    return names


def beginning_of(data: Any) -> str:
    """Return a task's ``prompt`` if it starts the function ``entry_point``, as HumanEval's do. Otherwise empty."""
    prompt, entry = data.get("prompt"), data.get("entry_point")
    is_beginning = isinstance(prompt, str) and isinstance(entry, str) and entry in defined_names(prompt)
    return prompt.rstrip() + "\n" if is_beginning else ""


def _functions(test: Test, defined: set[str]) -> set[str]:
    if isinstance(test, CallTest):
        return {test.function}
    return find_functions(ast.parse(f"{test.setup}\n{test.code}"), defined) if isinstance(test, CodeTest) else set()


def _blocks(content: str) -> list[tuple[str, str]]:
    """Return the language and the contents of each block. The last block may have no end."""
    blocks: list[tuple[str, str]] = []
    lines = iter(content.split("\n"))
    for line in lines:
        if (start := FENCE.fullmatch(line)) is None:
            continue
        fence, indent = start["fence"], len(start["indent"])
        code = []
        for inner in lines:
            text = inner.strip()
            is_end = set(text) == {fence[0]} and len(text) >= len(fence)
            if is_end and len(inner) - len(inner.lstrip()) <= indent:
                break
            code.append(inner[min(indent, len(inner) - len(inner.lstrip())) :])
        blocks.append((start["language"], "".join(f"{each}\n" for each in code)))
    return blocks


def _parse(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


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
