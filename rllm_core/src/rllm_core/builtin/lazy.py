"""Implementations are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def load_from(module: str, name: str) -> Callable[[], Any]:
    """A `load` that imports ``rllm_core.<module>`` when it is called."""
    return lambda: getattr(import_module(f"rllm_core.{module}"), name)
