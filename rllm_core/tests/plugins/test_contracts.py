"""`rllm_core.contracts` is one import for authors."""

from __future__ import annotations

import ast
from pathlib import Path

from rllm_core import contracts

FILES = sorted(Path(contracts.__path__[0]).glob("[a-z]*.py"))
NOT_FOR_AUTHORS = frozenset({"ParamsT", "RecordT", "FAMILY"})


def test_public_names_of_contracts_are_in_the_package() -> None:
    for file in FILES:
        names = set()
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        public = {name for name in names if not name.startswith("_")} - NOT_FOR_AUTHORS
        assert public <= set(dir(contracts))
        assert all(getattr(contracts, name) is not None for name in public)
