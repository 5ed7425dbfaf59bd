"""Checks which package imports which: ``python tests/tools/check_imports.py`` is part of ``make lint``.

import_contracts.toml has the rules. The lists of our packages in it come from the directories.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable

from importlinter.application.use_cases import lint_imports
from importlinter.configuration import configure
from workspace import ROOT, distributions


def _as_list(names: Iterable[str]) -> str:
    return ", ".join(json.dumps(name) for name in names)


def rules() -> str:
    """Return the text of import_contracts.toml with the names of our packages filled in."""
    packages = sorted(package.name for each in distributions() for package in each.packages)
    without_core = [name for name in packages if name != "rllm_core"]
    text = (ROOT / "import_contracts.toml").read_text(encoding="utf-8")
    text = text.replace("ALL_BUT_CORE_AND_SERVING", _as_list(name for name in without_core if name != "rllm_serving"))
    return text.replace("ALL_BUT_CORE", _as_list(without_core)).replace("ALL_PACKAGES", _as_list(packages))


if __name__ == "__main__":
    configure()
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(rules())
        file.flush()
        sys.exit(not lint_imports(config_filename=file.name, cache_dir=None, no_logo=True))
