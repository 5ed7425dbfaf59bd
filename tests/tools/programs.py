"""Tests that need a program of the operating system, or a package from a registry."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def needs_program(name: str) -> pytest.MarkDecorator:
    """Mark tests that start a program. They are skipped on a machine without it, but run and fail with ``CI=true``."""
    missing = shutil.which(name) is None and not os.environ.get("CI")
    return pytest.mark.skipif(missing, reason=f"{name} is not installed")


def skip_without_package(name: str, reason: str) -> NoReturn:
    """Skip a test whose package a registry does not give. With ``CI=true`` the test fails."""
    problem = f"no registry gives {name}: {reason.strip()[-200:]}"
    if os.environ.get("CI"):
        pytest.fail(problem)
    pytest.skip(problem)
