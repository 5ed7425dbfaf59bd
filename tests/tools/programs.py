"""Marks of tests that need a program of the operating system."""

from __future__ import annotations

import os
import shutil

import pytest


def needs_program(name: str) -> pytest.MarkDecorator:
    """Mark tests that start a program. They are skipped on a machine without it, but run and fail with ``CI=true``."""
    missing = shutil.which(name) is None and not os.environ.get("CI")
    return pytest.mark.skipif(missing, reason=f"{name} is not installed")
