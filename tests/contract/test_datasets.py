"""Every dataset of ours is held to the contract of datasets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rllm_plugin_kit import DatasetContract

ROWS = [{"id": str(number), "question": f"{number} + {number}?", "parts": [number, None]} for number in range(5)]


class TestJsonl(DatasetContract):
    name = "rllm-core/jsonl"
    options: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"path": "tasks.jsonl"},
        {"path": "tasks.jsonl", "id_key": "question", "data_source": "sums"},
    )
    bad_options = (
        {},
        {"path": ""},
        {"path": "not-there.jsonl"},
        {"path": "empty.jsonl"},
        {"path": "tasks.jsonl", "id_key": "name"},
    )

    @pytest.fixture(autouse=True)
    @staticmethod
    def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.chdir(tmp_path)
        Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        Path("empty.jsonl").touch()
        yield
