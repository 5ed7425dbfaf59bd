"""Without vLLM: a server process that can answer everything but `start`, and what an engine is told at its start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rllm_core.contracts.engine import EngineSetup
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_local import tiny


@pytest.fixture
def setup(tmp_path: Path) -> EngineSetup:
    return EngineSetup(
        directory=tmp_path,
        renderer=TemplateRenderer(tiny.build_tokenizer(), {2, 7}),
        max_context=99,
        max_concurrency=5,
        kv_cache_bytes=1 << 28,
        dtype="bfloat16",
    )


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a package `vllm` in the way of server processes; its code is all that they find of vLLM."""

    def put(code: str) -> None:
        directory = tmp_path / "in-the-way"
        (directory / "vllm").mkdir(parents=True)
        (directory / "vllm" / "__init__.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(directory), prepend=":")

    return put
