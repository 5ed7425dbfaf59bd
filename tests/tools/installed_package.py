"""A package from PyPI in its own directory, for tests that read its files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from programs import skip_without_package

SECONDS = 120


def installed_package(requirement: str, directories: pytest.TempPathFactory) -> Path:
    """Return a directory with a package, without its requirements. Skip the test without it, see `programs`."""
    target = directories.mktemp("package")
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run(
        [str(uv), "pip", "install", "--quiet", "--no-deps", "--target", str(target), requirement],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        skip_without_package(requirement, done.stderr)
    return target
