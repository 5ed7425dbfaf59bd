"""The chat templates of known models, as TRL ships them: tools work, or the run is refused before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_templates import renderer_of, setup_of, templates
from expecting import expect_error

from rllm_backend_kit.renderers import check_reads_back, check_tool_calls
from rllm_core.errors import ConfigError
from rllm_core.rollout.options import TemplateParams
from rllm_renderers.auto import make_auto

WORKING = {"llama3_1", "llama3_2", "qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"}
UNREADABLE = {"gptoss", "idefics3", "llava_next", "muse_glimmer", "smolvlm"}
"""Templates with channels, and templates that show no message that is one text."""
THINKING_PROMPTS = {"deepseek_r1_distill", "deepseekv3", "qwen3_5_nothink"}
"""Templates whose prompts begin reasoning, which later prompts do not repeat."""
TEMPLATES = templates()
USER, ANSWER, NEXT = (
    {"role": role, "content": text} for role, text in (("user", "hi?"), ("assistant", "Two."), ("user", "and?"))
)


@pytest.mark.skipif(not TEMPLATES, reason="trl is not installed; `make install` puts it into conformance/")
def test_all_families_are_here() -> None:
    assert {path.stem for path in TEMPLATES} > WORKING
    assert len(TEMPLATES) > 30


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_tools_work_or_are_refused(path: Path) -> None:
    if path.stem in WORKING:
        check_tool_calls(renderer_of(path), "template")
        return
    with expect_error(ConfigError, "tools-not-supported", "'template'"):
        check_tool_calls(renderer_of(path), "template")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_template_reads_back_or_is_refused(path: Path) -> None:
    renderer = renderer_of(path)
    if path.stem in UNREADABLE:
        with expect_error(ConfigError, "unsupported-chat-template", "'template'"):
            check_reads_back(renderer, lambda: "")
    else:
        check_reads_back(renderer, lambda: "")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_auto_extends_rows_exactly_without_reasoning(path: Path) -> None:
    """The next prompt is the template's, and begins with the sampled tokens."""
    if path.stem in UNREADABLE | THINKING_PROMPTS:
        return
    setup = setup_of(path)
    renderer = make_auto(setup, TemplateParams())
    prompt, then = renderer.prompt([USER]).tolist(), renderer.prompt([USER, ANSWER, NEXT]).tolist()
    if then[: len(prompt)] != prompt:
        pytest.skip("prompts begin a thought")
    end = next(place for place in range(len(prompt), len(then)) if then[place] in renderer.stop_ids) + 1
    response = then[len(prompt) : end]
    assert renderer.parse(prompt, response).content.strip() == "Two."
    assert renderer.bridge(prompt, response, [NEXT]).tolist() == then
    expected = setup.tokenizer.apply_chat_template([USER, ANSWER, NEXT], tokenize=False, add_generation_prompt=True)
    assert setup.tokenizer.decode(then) == expected
