"""The sandboxes `local`, `bwrap`, `docker` and `podman`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from rllm_core.contracts.sandbox import SandboxPlugin
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_sandboxes() -> Iterable[SandboxPlugin[Any]]:
    yield SandboxPlugin(
        name="local",
        summary="A temporary directory, WITHOUT isolation: commands may do all that you may do.",
        load=load_from("rllm.builtin.sandboxes.local", "start_local"),
    )
    yield SandboxPlugin(
        name="bwrap",
        summary="Bubblewrap: an own file system, own processes and no network. No root, no daemon, no images.",
        load_params=load_from("rllm.builtin.sandboxes.bwrap", "BwrapParams"),
        check=call_lazily("rllm.builtin.sandboxes.bwrap", "check_bwrap"),
        load=load_from("rllm.builtin.sandboxes.bwrap", "start_bwrap"),
    )
    for program, needs in (("docker", "Its daemon must run."), ("podman", "It needs no daemon.")):
        yield SandboxPlugin(
            name=program,
            summary=f"A container of any image, without a network. {needs} Not tested with real containers.",
            load_params=load_from("rllm.builtin.sandboxes.container", "ContainerParams"),
            check=partial(call_lazily("rllm.builtin.sandboxes.container", "check_container"), program),
            load=load_from("rllm.builtin.sandboxes.container", f"start_{program}"),
        )
