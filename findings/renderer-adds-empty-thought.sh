#!/usr/bin/env bash
# A library of renderers trains Qwen3-Instruct-2507 on an empty thought that the model's template does not have.
#
# Versions: renderers 0.1.12, transformers 5.10.4, with the model's chat template that trl 1.16.0 ships.
#
# Expected: `create_renderer` selects a renderer by the name of the model, so the renderer writes the tokens of the
# model's own chat template. The names Qwen/Qwen3-4B-Instruct-2507 and Qwen/Qwen3-30B-A3B-Instruct-2507 are in its
# table.
#
# Observed: prompts are equal, also with tools. The last response gets an empty thought, and a reasoning field is
# written, which this template ignores. The models without reasoning are in the table as the family of the models with
# reasoning.
#
# Output:
#   prompt with tools     equal
#   prompt of two turns   equal
#   response  template:  '<|im_start|>assistant\nANSWER<|im_end|>\n'
#             renderer:  '<|im_start|>assistant\n<think>\n\n</think>\n\nANSWER<|im_end|>\n'
#
# Why it matters: a comparison of prompts shows no difference. Fine-tuning then trains four tokens before each answer
# that the model never samples and that later prompts do not have. Log-probs of such rows are those of text that a
# server never sees.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
  renderers==0.1.12 transformers==5.10.4 tokenizers==0.22.2 jinja2==3.1.6
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps trl==1.16.0
venv/bin/python - <<'END'
import importlib.util
import sys
from pathlib import Path

from renderers import create_renderer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

templates = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
qwen = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
qwen.pre_tokenizer, qwen.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
frame = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"]
qwen.add_special_tokens([*frame, "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
tokenizer = PreTrainedTokenizerFast(tokenizer_object=qwen, eos_token="<|im_end|>")
tokenizer.chat_template = (templates / "qwen3_instruct_2507.jinja").read_text()
tokenizer.name_or_path = "Qwen/Qwen3-4B-Instruct-2507"
renderer = create_renderer(tokenizer)

question, answer = {"role": "user", "content": "QUESTION"}, {"role": "assistant", "content": "ANSWER"}
function = {"name": "look", "description": "Look up", "parameters": {"type": "object", "properties": {}}}
tools = [{"type": "function", "function": function}]


def render(conversation: list, **options: object) -> tuple[str, str]:
    """Return the text by the model's template, and by the renderer."""
    by_template = tokenizer.apply_chat_template(conversation, tokenize=False, **options)
    return by_template, tokenizer.decode(renderer.render_ids(conversation, **options))


prompts = [
    render([question], tools=tools, add_generation_prompt=True),
    render([question, answer, question], add_generation_prompt=True),
]
for name, (by_template, by_renderer) in zip(("prompt with tools", "prompt of two turns"), prompts, strict=True):
    print(f"{name:22}{'equal' if by_template == by_renderer else 'different'}")
by_template, by_renderer = (text[text.index("<|im_start|>assistant") :] for text in render([question, answer]))
print(f"response  template:  {by_template!r}\n          renderer:  {by_renderer!r}")
thought = "<think>\n\n</think>\n\n"
if any(a != b for a, b in prompts) or by_renderer != by_template.replace("ANSWER", thought + "ANSWER"):
    sys.exit("The behavior changed.")
END
