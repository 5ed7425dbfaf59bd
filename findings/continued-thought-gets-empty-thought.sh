#!/usr/bin/env bash
# A response that is continued within its thought gets an empty thought in front, with Qwen3's and GLM 4's templates.
#
# Versions: transformers 5.10.4, jinja2 3.1.6, with chat templates that trl 1.16.0 ships.
#
# Expected: `continue_final_message=True` ends the prompt with the text of the last message, so the model continues it.
# The prompt is the generation prompt and the text that was sampled, as with DeepSeek's and Nemotron's templates.
#
# Observed: the templates look for `</think>` to split a message into thought and answer. A partial thought has none, so
# it is rendered as an answer after an empty thought. Six of fifteen templates with `<think>` do this, without an error.
# If the thought is in its own field, `continue_final_message="reasoning_content"` gives the right prompt.
#
# Output:
#   qwen3                   '\n<|im_start|>assistant\n<think>\n\n</think>\n\n<think>\nLet me see'
#   glm4moe                 '<|assistant|>\n<think></think>\n<think>\nLet me see'
#   deepseekv3              '<｜Assistant｜><think>\nLet me see'
#   empty thought first: glm4moe, qwen3, qwen3_5_nothink, qwen3_5_think, qwen3_6, qwen3_8
#
# Why it matters: asynchronous runs stop long responses at a weight update and continue them. An empty thought is how
# these templates switch reasoning off, and the second part of a response then has a prompt that differs from the prompt
# of its first part.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile transformers==5.10.4 jinja2==3.1.6
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps trl==1.16.0
venv/bin/python - <<'END'
import importlib.util
import re
import sys
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

package = Path(importlib.util.find_spec("trl").origin).parent
templates = {
    p.stem: p.read_text() for p in sorted((package / "chat_templates").glob("*.jinja")) if "_training" not in p.stem
}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<bos>", eos_token="<eos>")
conversation = [{"role": "user", "content": "QUESTION"}, {"role": "assistant", "content": "<think>\nLet me see"}]
observed = {
    name: tokenizer.apply_chat_template(
        conversation, chat_template=template, tokenize=False, continue_final_message=True
    )
    for name, template in templates.items()
    if "<think>" in template
}
for name, prompt in observed.items():
    print(f"{name:24}{prompt[prompt.index('QUESTION') + 8 :].removeprefix('<|im_end|>')!r}")
empty_first = [name for name, prompt in observed.items() if re.search(r"<think>\s*</think>", prompt)]
print("empty thought first:", ", ".join(empty_first))
if len(observed) != 15 or empty_first != ["glm4moe", "qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"]:
    sys.exit("The behavior changed.")
END
