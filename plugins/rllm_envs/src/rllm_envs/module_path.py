"""The directories of the user's modules, for processes that import the same modules as this process."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path


def find_module_path() -> str:
    """Return a value of PYTHONPATH for processes that run in a different directory.

    It has no directory of installed packages, because a different Python may read it too.
    """
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    installed = {*map(sysconfig.get_path, names), *site.getsitepackages(), site.getusersitepackages()}
    named = {str(Path(each).absolute()) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each}
    found = dict.fromkeys(str(Path(each).absolute()) for each in sys.path)
    return os.pathsep.join(each for each in found if each in named or _is_own(Path(each), installed))


def _is_own(directory: Path, installed: set[str]) -> bool:
    return directory.is_dir() and not any(directory.is_relative_to(each) for each in installed)
