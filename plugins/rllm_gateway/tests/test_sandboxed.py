"""Programs in sandboxes, and the instructions that they receive."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from expecting import expect_error

from rllm.sandboxes.local import start_local
from rllm_core.contracts.sandbox import Sandbox, SandboxSetup
from rllm_core.errors import RolloutError
from rllm_gateway.running.runners import LONGEST, URL, Outcome
from rllm_gateway.running.sandboxed import SandboxRunner


async def start(setup: SandboxSetup) -> Sandbox:
    return await start_local(None, setup)


def run(command: Sequence[str], instruction: str) -> Outcome:
    runner = SandboxRunner(command, start, seconds=60.0)
    return asyncio.run(runner.run({"instruction": instruction}, {URL: "http://127.0.0.1:9"}))


@pytest.mark.parametrize(("letter", "length"), [("x", 140_000), ("ä", LONGEST // 2 + 1)])
def test_long_instruction_is_on_standard_input_only(letter: str, length: int) -> None:
    source = "import json, os, sys; print(len(json.load(sys.stdin)['instruction']), 'RLLM_INSTRUCTION' in os.environ)"
    outcome = run(["python3", "-c", source], letter * length)
    assert outcome.last_lines == (f"{length} False",)


def test_long_instruction_as_an_argument_is_an_error() -> None:
    with expect_error(RolloutError, "instruction-too-long", "140000"):
        run(["echo", "{instruction}"], "x" * 140_000)


def test_variable_with_the_directory_is_the_sandbox() -> None:
    outcome = run(["python3", "-c", "import os; print(os.environ['PWD'] == os.getcwd())"], "x")
    assert outcome.last_lines == ("True",)
