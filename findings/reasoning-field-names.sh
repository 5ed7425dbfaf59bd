#!/usr/bin/env bash
# No name of the reasoning field works for all chat templates, and a wrong name is not an error.
#
# Versions: transformers 5.10.4, jinja2 3.1.6, with the 41 original chat templates that trl 1.16.0 ships.
#
# Expected: `reasoning_content` is the common name. Templates of models that reason read it, or raise an error for an
# assistant message with a key that they do not use.
#
# Observed: 17 templates read a field, and they differ in its name. gpt-oss and LFM 2.5 read only `thinking`. Qwen3, GLM
# 4 and Nemotron 3 read only `reasoning_content`. The last revision of Gemma 4's template reads `reasoning` too, and the
# four revisions before write no reasoning of a response without tool calls. Each template ignores the other names.
#
# Output:
#   none                                     24  …, gemma4, …, qwen2_5, qwen3_instruct_2507, …
#   reasoning_content+reasoning               2  diffusion_gemma, gemma4_v5
#   reasoning_content                        11  glm4moe, muse_glimmer, nemotron_3_nano, …, qwen3, qwen3_5_think, …
#   thinking                                  2  gptoss, lfm2_2_5
#   reasoning_content+reasoning+thinking      2  lfm2_2_5_v2, lfm2_2_5_vl
#
# Why it matters: servers return the reasoning under different names, and data sets copy them. With the wrong name,
# fine-tuning trains the model to answer without reasoning. For Qwen3 it trains an empty thought.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile transformers==5.10.4 jinja2==3.1.6
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps trl==1.16.0
venv/bin/python - <<'END'
import importlib.util
import sys
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

package = Path(importlib.util.find_spec("trl").origin).parent
templates = {
    p.stem: p.read_text() for p in sorted((package / "chat_templates").glob("*.jinja")) if "_training" not in p.stem
}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<bos>", eos_token="<eos>")


def reads(name: str, field: str) -> bool:
    """Return True if the rendering of a last response has its reasoning. Three vision models read only lists of parts."""
    parts = name in ("idefics3", "llava_next", "smolvlm")
    conversation = [
        {"role": "user", "content": [{"type": "text", "text": "QUESTION"}] if parts else "QUESTION"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "ANSWER"}] if parts else "ANSWER",
            field: "REASONING",
        },
    ]
    return "REASONING" in tokenizer.apply_chat_template(conversation, chat_template=templates[name], tokenize=False)


observed: dict[tuple[str, ...], list[str]] = {}
for name in templates:
    fields = tuple(field for field in ("reasoning_content", "reasoning", "thinking") if reads(name, field))
    observed.setdefault(fields, []).append(name)
for fields, names in observed.items():
    print(f"{'+'.join(fields) or 'none':40}{len(names):3}  {', '.join(names)}")
if {fields: len(names) for fields, names in observed.items()} != {
    (): 24,
    ("reasoning_content",): 11,
    ("reasoning_content", "reasoning"): 2,
    ("reasoning_content", "reasoning", "thinking"): 2,
    ("thinking",): 2,
}:
    sys.exit("The behavior changed.")
END
