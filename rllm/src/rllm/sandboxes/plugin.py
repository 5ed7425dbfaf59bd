"""The sandboxes `local` and `bwrap`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm.sandboxes.options import BwrapParams, check_bwrap
from rllm_core.contracts.sandbox import SandboxPlugin
from rllm_core.lazy import load_from


def sandboxes() -> Iterable[SandboxPlugin[Any]]:
    yield SandboxPlugin(
        name="local",
        summary="A temporary directory, WITHOUT isolation: commands may do all that you may do.",
        load=load_from("rllm.sandboxes.local", "start_local"),
    )
    yield SandboxPlugin(
        name="bwrap",
        summary="Bubblewrap: an own file system, own processes and no network. No root, no daemon, no images.",
        params=BwrapParams,
        check=check_bwrap,
        load=load_from("rllm.sandboxes.bwrap", "start_bwrap"),
    )
