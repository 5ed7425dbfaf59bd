"""The program registers its plugins as one entry point."""

from __future__ import annotations

from importlib.metadata import entry_points

from rllm import plugin


def test_entry_point_has_the_name_of_the_package() -> None:
    (found,) = entry_points(group="rllm.plugins", name="rllm")
    assert found.load() is plugin
