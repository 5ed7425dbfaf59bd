"""Sandboxes that are wrong in one way each, and the messages of the contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rllm.builtin.sandboxes.local import LocalSandbox, start_local
from rllm_core.contracts import CommandResult, NoParams, SandboxPlugin, SandboxSetup
from rllm_plugin_kit import SandboxContract


class LosesErrors(LocalSandbox):
    async def run(self, command: Sequence[str], **options: Any) -> CommandResult:
        return replace(await super().run(command, **options), stderr=b"")


class RaisesExitCode(LocalSandbox):
    async def run(self, command: Sequence[str], **options: Any) -> CommandResult:
        result = await super().run(command, **options)
        return replace(result, exit_code=1) if result.exit_code == 127 else result


class IgnoresTimeLimit(LocalSandbox):
    async def run(self, command: Sequence[str], **options: Any) -> CommandResult:
        result = await super().run(command, **options)
        return replace(result, exit_code=0) if result.exit_code is None else result


class KeepsOldFiles(LocalSandbox):
    async def copy_in(self, source: Path, target: str) -> None:
        for path in source.iterdir():
            if path.is_file():
                Path(self.root + target, path.name).write_bytes(path.read_bytes())


class ShowsTests(LocalSandbox):
    isolates = True


def record(sandbox: type[LocalSandbox], directory: Path) -> SandboxPlugin[NoParams]:
    async def start(params: NoParams, setup: SandboxSetup) -> LocalSandbox:
        place = directory / str(len(list(directory.iterdir())))
        place.mkdir()
        return sandbox(place)

    return SandboxPlugin(name="mine", summary="Mine.", load=lambda: start)


@pytest.mark.long
def test_a_good_sandbox_has_no_complaints(complaints: Any) -> None:
    good = SandboxPlugin(name="mine", summary="Mine.", load=lambda: start_local)
    assert complaints(SandboxContract, good) == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("made", "test", "value"),
    [
        (LosesErrors, "outputs_and_exit_code_are_returned", "stderr=b''"),
        (RaisesExitCode, "missing_program_gives_exit_code_127", "127"),
        (IgnoresTimeLimit, "a_command_is_stopped_at_its_time_limit", "SIGKILL"),
        (KeepsOldFiles, "a_directory_is_copied_in", "earlier"),
        (ShowsTests, "untrusted_commands_see_no_tests", "isolates = False"),
    ],
)
def test_contract_reports_the_mistake(complaint: Any, made: Any, test: str, value: str, tmp_path: Path) -> None:
    assert value in complaint(SandboxContract, record(made, tmp_path), test)


def test_contract_reports_shared_files(complaint: Any, tmp_path: Path) -> None:
    shared = LocalSandbox(tmp_path)

    async def start(params: NoParams, setup: SandboxSetup) -> LocalSandbox:
        shared.stop = nothing  # type: ignore[method-assign]
        return shared

    async def nothing() -> None: ...

    made = SandboxPlugin(name="mine", summary="Mine.", load=lambda: start)
    assert "shares" in complaint(SandboxContract, made, "two_sandboxes_share_no_files")
