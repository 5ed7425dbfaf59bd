#!/usr/bin/env bash
# The chat templates of DeepSeek's reasoning models cannot write a response with its reasoning.
#
# Versions: transformers 5.10.4, jinja2 3.1.6, with chat templates that trl 1.16.0 ships.
#
# Expected: a template removes the reasoning of earlier turns and keeps the reasoning of the last response, as Qwen3's
# does. The prompt of a rollout and its response are then the beginning and the end of the rendered conversation.
#
# Observed: the templates `deepseek_r1_distill` and `deepseekv3` end the prompt with `<think>`. They cut the content of
# each assistant message at `</think>`, also of the last one, and read no reasoning field. So the rendered conversation
# has no reasoning, and does not begin with the prompt.
#
# Output:
#   deepseek_r1_distill  prompt is a prefix: False  reasoning of the last turn: inline False, reasoning_content False
#   deepseekv3           prompt is a prefix: False  reasoning of the last turn: inline False, reasoning_content False
#   qwen3                prompt is a prefix: True   reasoning of the last turn: inline True, reasoning_content True
#
# Why it matters: fine-tuning on reasoning traces through these templates trains the answers only, and the loss looks
# normal. Code that finds the response as the text after the prompt trains wrong tokens or stops.
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

templates = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<bos>", eos_token="<eos>")
question = {"role": "user", "content": "QUESTION"}
inline = {"role": "assistant", "content": "<think>\nREASONING\n</think>\n\nANSWER"}
field = {"role": "assistant", "content": "ANSWER", "reasoning_content": "REASONING"}

observed = {}
for name in ("deepseek_r1_distill", "deepseekv3", "qwen3"):
    options = {"chat_template": (templates / f"{name}.jinja").read_text(), "tokenize": False}
    prompt = tokenizer.apply_chat_template([question], add_generation_prompt=True, **options)
    rows = [tokenizer.apply_chat_template([question, response], **options) for response in (inline, field)]
    observed[name] = (rows[0].startswith(prompt), *("REASONING" in row for row in rows))
    print(
        f"{name:21}prompt is a prefix: {observed[name][0]!s:7}"
        "reasoning of the last turn: inline {1}, reasoning_content {2}".format(*observed[name])
    )
if list(observed.values()) != [(False,) * 3, (False,) * 3, (True,) * 3]:
    sys.exit("The behavior changed.")
END
