"""The sandboxes `local`, `bwrap`, `docker` and `podman`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from functools import partial
from typing import Any

from pydantic import Field

from rllm_core.contracts.plugin import Params
from rllm_core.contracts.sandbox import SandboxPlugin
from rllm_core.errors import ConfigError
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1

PROGRAMS = {"bwrap": "bubblewrap", "unshare": "util-linux", "nsenter": "util-linux"}
"""Programs that the sandbox `bwrap` starts, and the Debian packages that contain them."""
APPARMOR = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"


class ContainerParams(Params):
    """Options of the sandboxes ``docker`` and ``podman``."""

    image: str = Field(
        "python:3.12",
        description="Image of the containers. It needs sh, find, tar, bash for tests, and python3 for agents. It is "
        "pulled if this machine has none.",
    )
    arguments: list[str] = Field(
        default_factory=list,
        description="More arguments of `docker run` or `podman run`, such as [--storage-opt, size=1G].",
    )
    readable: list[str] = Field(
        default_factory=list,
        description="Directories of this machine that commands may read, under the same path.",
    )


class BwrapParams(Params):
    """Options of the sandbox ``bwrap``."""

    readable: list[str] = Field(
        default_factory=list,
        description="More directories of this machine that commands may read, under the same path. The subdirectory "
        "`bin` of each is added to PATH. For example the virtual environment of an agent.",
    )


def check_bwrap(params: BwrapParams) -> None:
    """Check that sandboxes can be started.

    Raises:
        ConfigError: a program is missing, or the machine does not allow namespaces.
    """
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            raise ConfigError(
                "sandbox-unavailable",
                f"Sandbox bwrap needs the program {program}, which is not installed.",
                f"Install it, for example with `sudo apt-get install {package}`.",
            )
    command = ["unshare", "--user", "--map-root-user", "--mount", "bwrap", "--unshare-all", "--ro-bind", "/", "/"]
    trial = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if trial.returncode:
        raise ConfigError(
            "sandbox-unavailable",
            f"Sandbox bwrap cannot start here: {trial.stderr.strip()}",
            f"Allow user namespaces. On Ubuntu 24.04 or later: `{APPARMOR}`. In a container, allow them for it.",
        )


def check_container(program: str, params: ContainerParams) -> None:
    """Check that ``docker`` or ``podman`` is installed, and that it can start containers.

    Raises:
        ConfigError: the program is missing, or its daemon does not answer.
    """
    if shutil.which(program) is None:
        raise ConfigError(
            "sandbox-unavailable",
            f"Sandbox {program} needs the program {program}, which is not installed.",
            "Install it, or use --sandbox bwrap, which needs no daemon.",
        )
    trial = subprocess.run([program, "info"], capture_output=True, text=True, check=False)
    if trial.returncode:
        raise ConfigError(
            "sandbox-unavailable",
            f"Sandbox {program} cannot start containers here: {trial.stderr.strip()[-200:]}",
            f"Run `{program} info` until it succeeds, or use --sandbox bwrap, which needs no daemon.",
        )


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
        params=BwrapParams,
        check=check_bwrap,
        load=load_from("rllm.builtin.sandboxes.bwrap", "start_bwrap"),
    )
    for program, needs in (("docker", "Its daemon must run."), ("podman", "It needs no daemon.")):
        yield SandboxPlugin(
            name=program,
            summary=f"A container of any image, without a network. {needs} Not tested with real containers.",
            params=ContainerParams,
            check=partial(check_container, program),
            load=load_from("rllm.builtin.sandboxes.container", f"start_{program}"),
        )
