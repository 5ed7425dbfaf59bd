"""``from rllm_core.contracts import …`` has every public name of the files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rllm_core import contracts

DIRECTORY = Path(contracts.__file__).parent
NOT_FOR_AUTHORS = frozenset({"ParamsT", "RecordT", "FAMILY"})


@pytest.mark.parametrize("file", sorted(DIRECTORY.glob("[a-z]*.py")), ids=lambda file: file.stem)
def test_every_public_name_of_a_file_is_offered(file: Path) -> None:
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    public = {name for name in names if not name.startswith("_")} - NOT_FOR_AUTHORS
    assert public <= set(dir(contracts))
    assert all(getattr(contracts, name) is not None for name in public)
