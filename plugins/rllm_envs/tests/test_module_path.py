"""Processes in other directories import the modules of this process."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from rllm_envs.module_path import find_module_path


@pytest.mark.parametrize("entry", ["", ".", "here"])
def test_relative_entries_become_absolute(entry: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    installed = sysconfig.get_path("purelib")
    monkeypatch.setattr(sys, "path", [entry, installed])
    assert find_module_path() == str(tmp_path / entry)
    monkeypatch.setenv("PYTHONPATH", installed)
    assert find_module_path() == os.pathsep.join([str(tmp_path / entry), installed])
