#!/usr/bin/env bash
# Most of TRL's training templates mark tokens for the loss that the model never samples.
#
# Versions: trl 1.16.0 (31 training templates), transformers 5.10.4, jinja2 3.1.6.
#
# Expected: `{% generation %}` surrounds the text that the model samples in an assistant turn: all after the generation
# prompt, up to the stop token. The mask of `assistant_only_loss` then trains a model on its own tokens.
#
# Observed: 22 templates also mark the line break after the stop token. 13 begin inside the generation prompt: gpt-oss's
# marks the header of the turn, Qwen 2.5's the line break before the answer, and Qwen3.5's the `<think>` that the prompt
# already has.
#
# Output (two of 31 lines):
#   gptoss_training           in the prompt: '<|start|>assistant'  answer and rest: 'ANSWER<|return|>'
#   qwen2_5_training          in the prompt: '\n'                  answer and rest: 'ANSWER<|im_end|>\n'
#   31 templates: 13 mark a part of the prompt, 22 mark a line break after the stop token
#
# Why it matters: a loss or entropy per token contains tokens with a probability of almost 1. If answers are short, half
# of the mean is such tokens. Numbers of two programs then differ without a fault in either, and rollouts never have
# these tokens.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile transformers==5.10.4 jinja2==3.1.6
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps trl==1.16.0
venv/bin/python - <<'END'
import importlib.util
import os
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

package = Path(importlib.util.find_spec("trl").origin).parent
templates = {p.stem: p.read_text() for p in sorted((package / "chat_templates").glob("*_training.jinja"))}
vision = ("idefics3_training", "llava_next_training", "smolvlm_training")
inside, after = [], []
for name, template in templates.items():
    conversation = [
        {"role": role, "content": [{"type": "text", "text": text}] if name in vision else text}
        for role, text in (("user", "QUESTION"), ("assistant", "ANSWER"))
    ]
    options = {"chat_template": template, "bos_token": "<bos>", "eos_token": "<eos>"}
    [prompt], _ = render_jinja_template([conversation[:1]], add_generation_prompt=True, **options)
    [row], [spans] = render_jinja_template([conversation], return_assistant_tokens_mask=True, **options)
    trained = "".join(row[start:end] for start, end in spans)
    begin = trained[: max(0, len(os.path.commonprefix([prompt, row])) - spans[0][0])]
    rest = trained[trained.index("ANSWER") :]
    print(f"{name:33}in the prompt: {begin!r:29}answer and rest: {rest!r}")
    if begin:
        inside.append(name)
    if "\n" in rest:
        after.append(name)
print(
    f"{len(templates)} templates: {len(inside)} mark a part of the prompt, {len(after)} mark a line break after the stop token"
)
if (len(templates), len(inside), len(after)) != (31, 13, 22):
    sys.exit("The behavior changed.")
END
