"""Options of sandboxes, and checks that import nothing heavy."""

from __future__ import annotations

import shutil
import subprocess

from pydantic import Field

from rllm_core.contracts.plugin import Params
from rllm_core.errors import ConfigError

PROGRAMS = {"bwrap": "bubblewrap", "unshare": "util-linux", "nsenter": "util-linux"}
"""Programs that the sandbox `bwrap` starts, and the Debian packages that contain them."""
APPARMOR = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"


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
