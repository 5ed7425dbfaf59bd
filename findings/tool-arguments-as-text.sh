#!/usr/bin/env bash
# The OpenAI form of a tool call, with arguments as JSON text, is rendered as another call by eight chat templates.
#
# Versions: transformers 5.10.4, jinja2 3.1.6, with chat templates that trl 1.16.0 ships.
#
# Expected: a template accepts `arguments` as an object and as JSON text, because clients of OpenAI return text, and the
# model wrote the same tokens in both cases.
#
# Observed: of 41 original templates only three write the same text for both. Eight write something that the model would
# not sample: Qwen 2.5, Llama 3.1 and gpt-oss quote the text a second time, and Gemma 4 writes two pairs of braces.
# Seven drop the call in both forms. Sixteen need an object, and DeepSeek-V3 needs text. TRL's training version of
# DeepSeek-V3's template does the opposite: it quotes text.
#
# Output:
#   no calls            6  cohere, gemma, gemma3, idefics3, llava_next, smolvlm
#   drops the call      7  cohere2, deepseek_r1_distill, lfm2, llama3, phi3, phi3_5, qwen2_5_vl
#   needs text          1  deepseekv3
#   needs an object    16  …, glm4moe, …, nemotron_3_nano, …, qwen3_5_think, qwen3_6, qwen3_8
#   other call          8  gemma4, gemma4_v2, gemma4_v3, gemma4_v4, gptoss, llama3_1, llama3_2, qwen2_5
#   same                3  qwen3, qwen3_instruct_2507, qwen3_vl
#   qwen2_5               'look", "arguments": "{\\"city\\": \\"OSLO\\"}"'
#   gemma4                'look{{"city": "OSLO"}}<'
#   deepseekv3            'look\n```json\n{"city": "OSLO"}\n`'
#   deepseekv3_training   'look\n```json\n"{\\"city\\": \\"OSLO\\"}"'
#
# Why it matters: the messages of an agent come from a client, and rollouts are rendered again for each next turn. Then
# the prompt has a call that differs from the sampled one, the rows of a rollout do not extend each other, and
# fine-tuning trains quoted arguments.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile transformers==5.10.4 jinja2==3.1.6
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps trl==1.16.0
venv/bin/python - <<'END'
import importlib.util
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

package = Path(importlib.util.find_spec("trl").origin).parent
templates = {p.stem: p.read_text() for p in sorted((package / "chat_templates").glob("*.jinja"))}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<bos>", eos_token="<eos>")
parameters = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "A city"}},
    "required": ["city"],
}
tools = [{"type": "function", "function": {"name": "look", "description": "Look up", "parameters": parameters}}]
ARGUMENTS = {"city": "OSLO"}


def render(name: str, arguments: object) -> str | None:
    """Return the rendering of a conversation with one call. None if the template raises an error."""
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": arguments}}
    conversation = [
        {"role": "user", "content": "QUESTION"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "look", "content": "cold"},
    ]
    try:
        return tokenizer.apply_chat_template(conversation, tools=tools, chat_template=templates[name], tokenize=False)
    except Exception:  # Each template has its own way to fail.
        return None


def classify(name: str) -> str:
    """Return the outcome of a template for both forms of arguments."""
    by_object, by_text = render(name, ARGUMENTS), render(name, json.dumps(ARGUMENTS))
    if by_object is None or by_text is None:
        return "no calls" if by_object == by_text else "needs text" if by_object is None else "needs an object"
    if "OSLO" not in by_object:
        return "drops the call"
    return "same" if by_object == by_text else "other call"


observed: dict[str, list[str]] = {}
for name in templates:
    if not name.endswith("_training"):
        observed.setdefault(classify(name), []).append(name)
for outcome, names in observed.items():
    print(f"{outcome:18}{len(names):3}  {', '.join(names)}")
for name in ("qwen2_5", "gemma4", "deepseekv3", "deepseekv3_training"):
    text = render(name, json.dumps(ARGUMENTS))
    print(f"{name:22}{text[text.index('look', text.index('QUESTION')) : text.index('OSLO') + 8]!r}")
counts = {outcome: len(names) for outcome, names in observed.items()}
if (
    counts
    != {
        "no calls": 6,
        "drops the call": 7,
        "needs text": 1,
        "needs an object": 16,
        "other call": 8,
        "same": 3,
    }
    or classify("deepseekv3_training") != "other call"
):
    sys.exit("The behavior changed.")
END
