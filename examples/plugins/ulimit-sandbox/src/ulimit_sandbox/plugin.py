"""Plugin specs of ulimit-sandbox."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts import SandboxPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_sandboxes() -> Iterable[SandboxPlugin[Any]]:
    yield SandboxPlugin(
        name="ulimit_sandbox",
        summary="A directory without isolation, with limits of memory, file size and CPU time.",
        load_params=load_from("ulimit_sandbox.options", "UlimitSandboxParams"),
        load=load_from("ulimit_sandbox.sandbox", "start"),
    )
