"""The renderers of `rllm-renderers` compared with the chat templates of their families."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from chat_templates import setup_of, templates
from expecting import expect_error

from rllm_backend_kit.renderers import TOOLS, check_tool_calls
from rllm_core.data.messages import ToolCall
from rllm_core.errors import RolloutError
from rllm_core.rollout.options import TemplateParams
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_plugin_kit import RendererContract
from rllm_renderers.auto import make_auto
from rllm_renderers.choice import family_of, make_renderers
from rllm_renderers.library_renderer import LibraryRenderer
from rllm_renderers.options import RenderersParams

FAMILIES = {
    "glm4moe": "glm-4.5",
    "nemotron_3_nano": "nemotron-3",
    "nemotron_3_ultra": "nemotron-3-ultra",
    "qwen3": "qwen3",
    "qwen3_5_think": "qwen3.5",
    "qwen3_6": "qwen3.6",
    "qwen3_8": "qwen3.8",
    "qwen3_vl": "qwen3-vl",
}
"""Template -> families. Equal templates may belong to two families."""
BY_NAME = {path.stem: path for path in templates()}
pytestmark = pytest.mark.skipif(not BY_NAME, reason="trl is not installed; `make install` puts it into conformance/")
USER = {"role": "user", "content": "What is one plus two?"}
FAMILY = pytest.mark.parametrize("name", FAMILIES)


def _auto(name: str) -> Any:
    return make_auto(setup_of(BY_NAME[name]), TemplateParams())


@FAMILY
def test_directory_is_recognized_by_template_and_tools_work(name: str) -> None:
    assert family_of(setup_of(BY_NAME[name])) == FAMILIES[name]
    assert isinstance(_auto(name), LibraryRenderer)
    check_tool_calls(_auto(name), "auto")


@pytest.mark.parametrize("name", ["gemma3", "qwen2_5", "phi3", "qwen3_instruct_2507"])
def test_models_unknown_to_the_library_keep_their_template(name: str) -> None:
    assert isinstance(_auto(name), TemplateRenderer)


@pytest.mark.parametrize(
    ("template", "hub_name", "family"),
    [
        ("qwen3", "Qwen/Qwen3-8B", "qwen3"),
        ("qwen3_instruct_2507", "Qwen/Qwen3-4B-Instruct-2507", None),  # The library writes an empty <think> block.
        ("gemma4_v5", "google/gemma-4-E2B-it", "gemma4"),
        ("gemma4_v2", "google/gemma-4-E2B-it", None),  # An earlier revision of the same template.
        ("nemotron_3_5_lightning", "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16", "nemotron-3.5"),
    ],
)
def test_family_of_hub_name_equals_the_template(template: str, hub_name: str, family: str | None) -> None:
    assert family_of(replace(setup_of(BY_NAME[template]), name=hub_name)) == family


@FAMILY
def test_prompts_have_the_tokens_of_the_template(name: str) -> None:
    setup = setup_of(BY_NAME[name])
    of_template = TemplateRenderer(setup.tokenizer, setup.stop_ids)
    for tools in ((), TOOLS):
        assert _auto(name).prompt([USER], tools).tolist() == of_template.prompt([USER], tools).tolist()


def test_pictures_are_rejected_and_not_dropped() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    renderer = make_renderers(setup_of(BY_NAME["qwen3"]), RenderersParams(config="qwen3"))
    with expect_error(RolloutError, "unsupported-chat-template"):
        renderer.prompt([{"role": "user", "content": [{"type": "text", "text": "look"}, picture]}])


@FAMILY
def test_results_extend_what_was_sampled(name: str) -> None:
    renderer = _auto(name)
    prompt = renderer.prompt([USER], TOOLS)
    response = renderer.response_ids("</think>hm")
    bridged = renderer.bridge(prompt, response, [{"role": "tool", "content": "proof", "name": "add_numbers"}], TOOLS)
    assert bridged is not None
    assert bridged[: len(prompt) + len(response)].tolist() == [*prompt, *response]
    assert "proof" in renderer.text(bridged[len(prompt) + len(response) :])


@FAMILY
def test_reasoning_that_was_cut_off_is_closed(name: str) -> None:
    renderer = _auto(name)
    prompt = renderer.prompt([USER], TOOLS)
    opened = renderer.response_ids("<think>one and" if "think" not in renderer.text(prompt)[-12:] else "one and")[:-1]
    bridged = renderer.bridge(prompt, opened, [{"role": "tool", "content": "3", "name": "add_numbers"}], TOOLS)
    assert bridged is not None
    end = setup_of(BY_NAME[name]).tokenizer.convert_tokens_to_ids("</think>")
    assert end in bridged[len(prompt) + len(opened) :]


def test_unquoted_arguments_get_types_of_the_schema() -> None:
    renderer = _auto("qwen3_5_think")
    schema = {"type": "object", "properties": {"word": {"type": "string"}, "limit": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "find", "parameters": schema}}
    call = "<tool_call>\n<function=find>\n<parameter=word>\n42\n</parameter>\n<parameter=limit>\n3\n</parameter>\n"
    response = renderer.response_ids(f"</think>\n\n{call}</function>\n</tool_call>")
    parsed = renderer.parse(renderer.prompt([USER], [tool]), response, [tool])
    assert parsed.tool_calls == (ToolCall(name="find", arguments={"word": "42", "limit": 3}, id="call_0"),)


@pytest.mark.parametrize("call", ["{", '{"name": "add_numbers"', "{}"])
def test_calls_that_cannot_be_read_are_malformed(call: str) -> None:
    renderer = _auto("qwen3")
    parsed = renderer.parse(
        renderer.prompt([USER], TOOLS), renderer.response_ids(f"<tool_call>{call}</tool_call>"), TOOLS
    )
    assert (len(parsed.tool_calls), len(parsed.malformed_calls)) == (0, 1)


@pytest.mark.parametrize("said", ["Two.", "\n<think></think>\nTwo."])
def test_glm_answers_without_reasoning_extend_the_row(said: str) -> None:
    renderer = _auto("glm4moe")
    prompt, response = renderer.prompt([USER]), renderer.response_ids(said)
    parsed = renderer.parse(prompt, response)
    assert (parsed.content, parsed.reasoning or "") == ("Two.", "")
    bridged = renderer.bridge(prompt, response, [USER])
    assert bridged is not None
    assert bridged[: len(prompt) + len(response)].tolist() == [*prompt, *response]
    thought = renderer.response_ids("\n<think>one and one</think>\nTwo.")
    assert renderer.parse(prompt, thought).reasoning == "one and one"
    assert renderer.bridge(prompt, thought, [USER]) is None


@pytest.mark.parametrize("thought", ["", "<think>\nhm\n</think>\n\n"])
def test_library_keeps_calls_as_text_without_tools(thought: str) -> None:
    renderer = _auto("qwen3")
    call = 'wait <tool_call>\n{"name": "add_numbers", "arguments": {}}\n</tool_call>'
    parsed = renderer.parse(renderer.prompt([USER]), renderer.response_ids(f"{thought}{call}"))
    assert (parsed.tool_calls, parsed.malformed_calls) == ((), ())
    assert parsed.content.replace("wait<", "wait <") == call
    assert parsed.reasoning == ("hm" if thought else None)


class TestQwen3(RendererContract):
    name = "rllm-renderers/renderers"
    options = ({"config": "qwen3"}, {"config": "qwen3", "options": {"thinking_retention": "all"}}, {})

    def setup(self) -> Any:
        return setup_of(BY_NAME["qwen3"])


class TestAuto(RendererContract):
    """For a model that the library does not know."""

    name = "rllm-renderers/auto"
