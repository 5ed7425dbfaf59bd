"""A different process loads a backend's renderer, and gets the same tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from expecting import check_values, expect_error
from hypothesis import given, strategies as st

from rllm_backend_kit.model_files import stop_ids
from rllm_backend_kit.portable_renderer import (
    FILE,
    PortableTokenizer,
    load_renderer,
    portable_form,
    save_renderer,
    tokenizer_digest,
)
from rllm_backend_kit.renderers import make_renderer
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.chosen import PluginChoice
from rllm_core.contracts.renderer import PlainTextRenderer, Renderer, RendererSetup
from rllm_core.errors import ConfigError, PluginError, RolloutError
from rllm_core.notices import forget_warnings
from rllm_core.plugins import resolve
from rllm_core.rollout.options import TemplateParams
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_core.schema.run_config import RunConfig
from rllm_local.tiny import build_tokenizer

SAID = [{"role": "user", "content": "one plus one? ünï — 1"}]
CLIENT_LOSSES = """
import json, sys
from pathlib import Path
from rllm_backend_kit.portable_renderer import load_renderer
renderer = load_renderer(Path(sys.argv[1]))
imported = sorted({"torch", "transformers"} & sys.modules.keys())
print(json.dumps([renderer.prompt(json.loads(sys.argv[2])).tolist(), sorted(renderer.stop_ids), imported]))
"""

CHATML = """
{%- if tools %}<|system|>{% for tool in tools %}{{ tool | tojson(indent=1) }}
{% endfor %}{% endif %}
{%- for message in messages %}
    {%- if message.role == "judge" %}{{ raise_exception("No role " + message.role) }}{% endif %}
    {%- if loop.index > 20 %}{% break %}{% endif %}
    {{- bos_token + message.role + "|" }}
    {%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}
    {%- generation %}{{ message.content }}{% endgeneration %}
    {%- for call in message.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}
    {{- eos_token }}
{% endfor %}
{%- if add_generation_prompt %}{{ bos_token }}assistant|{% if enable_thinking %}<think>{% endif %}{% endif %}"""
LINES = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
TOOLS = [{"type": "function", "function": {"name": "ädd", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "c", "type": "function", "function": {"name": "ädd", "arguments": '{"first": "<1> & é"}'}}
CONVERSATION = [
    *SAID,
    {"role": "assistant", "content": "", "reasoning_content": "I ädd.", "tool_calls": [CALL]},
    {"role": "tool", "content": "2 </s> <s> <think>", "tool_call_id": "c"},
]


def bytes_tokenizer() -> Any:
    """Bytes, and special tokens with and without a meaning for `skip_special_tokens`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer: Any = Tokenizer(models.BPE(vocab={each: number for number, each in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True, lstrip=True)])
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in ("<think>", "</think>")])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", len(alphabet))])
    tokenizer.enable_truncation(4)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=True
    )


def pieces_tokenizer() -> Any:
    """Pieces with a space before the first word, as SentencePiece has them, and an unknown token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [("<unk>", 0.0), *((each, -2.0) for each in "▁abcdefghijklmnopqrstuvwxyz1"), ("▁one", -1.0)]
    tokenizer: Any = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def with_template(tokenizer: Any, template: Any) -> Any:
    tokenizer.chat_template = template
    return tokenizer


TOKENIZERS = {
    "words": build_tokenizer,
    "bytes": lambda: with_template(bytes_tokenizer(), CHATML),
    "pieces": lambda: with_template(pieces_tokenizer(), CHATML),
    "two templates": lambda: with_template(bytes_tokenizer(), {"default": LINES, "tool_use": CHATML}),
}


def portable(tokenizer: Any, directory: Path) -> PortableTokenizer:
    """Return the tokenizer of a different process."""
    form = portable_form(tokenizer)
    assert form is not None
    tokenizer.save_pretrained(directory)
    return PortableTokenizer(directory, json.loads(json.dumps(form)))


def made(chosen: PluginChoice[Any] | None = None, **setup: Any) -> Renderer:
    tokenizer = build_tokenizer()
    given = {"name": "tiny", "tokenizer": tokenizer, "stop_ids": stop_ids(tokenizer, None)} | setup
    run = RunContext(config=RunConfig(), backend_config=None, seed=0, total_steps=1, renderer=chosen)
    return make_renderer(run, RendererSetup(**given))


def chosen(name: str) -> PluginChoice[Any]:
    return PluginChoice(registered=resolve("renderer", name), params=TemplateParams())


def test_another_process_renders_the_same_tokens(tmp_path: Path) -> None:
    renderer = made()
    save_renderer(renderer, tmp_path)
    command = [sys.executable, "-c", CLIENT_LOSSES, str(tmp_path), json.dumps(SAID)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == [renderer.prompt(SAID).tolist(), sorted(renderer.stop_ids), []]


@pytest.mark.parametrize("name", ["rllm-core/template", "rllm-renderers/auto"])
def test_chosen_renderer_is_found_by_its_qualified_name(tmp_path: Path, name: str) -> None:
    renderer = made(chosen(name))
    save_renderer(renderer, tmp_path)
    assert json.loads((tmp_path / FILE).read_text())["plugin"] == name
    assert load_renderer(tmp_path).prompt(SAID).tolist() == renderer.prompt(SAID).tolist()


@pytest.mark.parametrize("name", ["rllm-core/template", "rllm-renderers/auto"])
def test_date_of_prompts_is_an_option(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    forget_warnings()
    tokenizer = with_template(bytes_tokenizer(), "{{ strftime_now('%d %b %Y') }}" + CHATML)
    params = TemplateParams(date=date(2024, 7, 26))
    renderer = made(PluginChoice(registered=resolve("renderer", name), params=params), tokenizer=tokenizer)
    assert capsys.readouterr().err == ""
    assert renderer.text(renderer.prompt(SAID)).startswith("26 Jul 2024")
    save_renderer(renderer, tmp_path)
    assert load_renderer(tmp_path).prompt(SAID).tolist() == renderer.prompt(SAID).tolist()

    made(chosen(name), tokenizer=tokenizer)
    assert "rllm.renderer.date=" in capsys.readouterr().err


def test_a_plugin_that_is_not_installed_is_named(tmp_path: Path) -> None:
    save_renderer(made(), tmp_path)
    form = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(form | {"plugin": "rllm-nowhere/gone"}))
    with pytest.raises(PluginError, match="gone"):
        load_renderer(tmp_path)


def test_renderer_with_changed_tokenizer_is_rejected(tmp_path: Path) -> None:
    save_renderer(made(), tmp_path)
    form = json.loads((tmp_path / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(form | {"sample": "0" * 32}))
    with expect_error(ConfigError, "renderer-not-portable", "tokenizer"):
        load_renderer(tmp_path)


def test_a_renderer_of_unknown_origin_is_refused(tmp_path: Path) -> None:
    renderer = TemplateRenderer(build_tokenizer(), [0])
    with expect_error(ConfigError, "renderer-not-portable", "TemplateRenderer"):
        save_renderer(renderer, tmp_path)


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_portable_tokenizer_renders_as_transformers(tmp_path: Path, name: str, tools: Any) -> None:
    from transformers import AutoTokenizer

    there = portable(TOKENIZERS[name](), tmp_path)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
    for said in (SAID, CONVERSATION):
        for options in ({}, {"enable_thinking": True, "bos_token": "<think>"}):
            rendering = {"tools": tools, "add_generation_prompt": True, "tokenize": False} | options
            text = tokenizer.apply_chat_template(said, **rendering)
            assert there.apply_chat_template(said, **rendering) == text
            ids = tokenizer.apply_chat_template(said, **rendering | {"tokenize": True, "return_dict": False})
            assert there.encode(text, add_special_tokens=False) == ids
            assert there.encode(text) == tokenizer.encode(text)
            for skipped in (True, False):
                assert there.decode(ids, skip_special_tokens=skipped) == tokenizer.decode(
                    ids, skip_special_tokens=skipped
                )
    assert there._loaded is None, "torch would have been imported"


@pytest.fixture(scope="module", params=["bytes", "pieces"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, PortableTokenizer]:
    tokenizer = TOKENIZERS[request.param]()
    return tokenizer, portable(tokenizer, tmp_path_factory.mktemp("tokenizer"))


@given(text=st.text(st.characters(codec="utf-8")) | st.text("ab <>/s▁.\n"))
def test_portable_tokenizer_encodes_as_transformers(both: tuple[Any, PortableTokenizer], text: str) -> None:
    tokenizer, there = both
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert there.encode(text, add_special_tokens=False) == ids
    assert there.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids, skip_special_tokens=True)
    assert there.convert_tokens_to_ids([text, "<s>"]) == tokenizer.convert_tokens_to_ids([text, "<s>"])
    offsets = {"add_special_tokens": False, "return_offsets_mapping": True}
    assert there(text, **offsets)["offset_mapping"] == tokenizer(text, **offsets)["offset_mapping"]


def test_portable_tokenizer_loads_transformers_for_other_methods(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["bytes"]()
    there = portable(tokenizer, tmp_path)
    assert (there.eos_token_id, there.unk_token_id, there.get_vocab()) == (257, None, tokenizer.get_vocab())
    assert there._loaded is None
    assert there.convert_ids_to_tokens([256, 257]) == ["<s>", "</s>"]
    assert there.apply_chat_template(SAID, return_dict=False) == tokenizer.apply_chat_template(SAID, return_dict=False)
    assert there._loaded is not None


def test_template_that_raises_is_refused_alike(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["bytes"]()
    renderers = [TemplateRenderer(each, [257]) for each in (tokenizer, portable(tokenizer, tmp_path))]
    errors = []
    for renderer in renderers:
        with pytest.raises(RolloutError, match="No role judge") as raised:
            renderer.prompt([{"role": "judge", "content": "x"}])
        errors.append(str(raised.value).partition(" (")[0])  # a file and a line follow
    assert errors[0] == errors[1]


def test_tokenizer_with_own_methods_keeps_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import PreTrainedTokenizerFast

    class Cleaning(PreTrainedTokenizerFast):
        def _decode(self, *arguments: Any, **options: Any) -> str:
            return str(super()._decode(*arguments, **options)).replace("\0", "")

    tokenizer = build_tokenizer()
    cleaning = Cleaning(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<end>")
    cleaning.chat_template = tokenizer.chat_template
    assert portable_form(cleaning) is None
    save_renderer(made(tokenizer=cleaning), tmp_path)
    check_values(capsys.readouterr().err, "Cleaning", "transformers")


def test_renderer_that_needs_transformers_is_loaded_with_it(tmp_path: Path) -> None:
    renderer = made()
    save_renderer(renderer, tmp_path)
    form = json.loads((tmp_path / FILE).read_text())
    for tokenizer in (None, form["tokenizer"] | {"chat_template": "other"}):
        (tmp_path / FILE).write_text(json.dumps(form | {"tokenizer": tokenizer}))
        loaded: Any = load_renderer(tmp_path)
        assert not isinstance(loaded.tokenizer, PortableTokenizer)
        assert loaded.prompt(SAID).tolist() == renderer.prompt(SAID).tolist()
        assert tokenizer_digest(loaded) == tokenizer_digest(renderer)


@pytest.mark.parametrize("special", [True, False])
def test_plain_text_has_the_tokens_of_transformers(special: bool, tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = build_tokenizer()
    begin = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, tokenizer.eos_token_id)]
    )
    save_renderer(made(tokenizer=tokenizer), tmp_path)
    text = SAID[0]["content"]
    expected = tokenizer(text, add_special_tokens=special)["input_ids"]
    assert (expected[0] == tokenizer.eos_token_id) == special
    renderer = load_renderer(tmp_path)
    assert isinstance(renderer, PlainTextRenderer)
    assert renderer.encode(text, add_special_tokens=special).tolist() == expected
