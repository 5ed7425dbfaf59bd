"""The chat templates of known models, as TRL ships them: tools work, or the run is refused before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_templates import renderer_of, templates

from rllm_backend_kit.renderer_checks import check_tool_calls
from rllm_core.errors import ConfigError

WORKING = {"llama3_1", "llama3_2", "qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"}
TEMPLATES = templates()


@pytest.mark.skipif(not TEMPLATES, reason="trl is not installed; `make install` puts it into conformance/")
def test_all_families_are_here() -> None:
    assert {path.stem for path in TEMPLATES} > WORKING
    assert len(TEMPLATES) > 30


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_tools_work_or_are_refused(path: Path) -> None:
    if path.stem in WORKING:
        check_tool_calls(renderer_of(path), "template")
        return
    with pytest.raises(ConfigError, match="cannot do that for this model"):
        check_tool_calls(renderer_of(path), "template")
