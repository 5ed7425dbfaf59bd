#!/usr/bin/env bash
# The chat templates of eleven models drop a `developer` message without an error.
#
# Versions: transformers 5.10.4, jinja2 3.1.6, with the 41 original chat templates that trl 1.16.0 ships.
#
# Expected: `developer` is the newer name of `system` in the OpenAI format, so a template writes the message, or raises
# an error for a role that its model does not have.
#
# Observed: eleven templates compare the role with a few names, and write nothing for other roles. Qwen 2.5, Qwen3 and
# DeepSeek-V3 are among them. Qwen3.5 raises an error, Llama 3 writes a turn of this role.
#
# Output:
#   written: 22 (…, llama3, llama3_1, llama3_2, nemotron_3_5_lightning, …)
#   dropped: 11 (cohere2, deepseek_r1_distill, deepseekv3, glm4moe, muse_glimmer, phi3, phi3_5, qwen2_5, qwen3, …)
#   error: 8 (cohere, gemma, gemma3, llava_next, qwen3_5_nothink, qwen3_5_think, qwen3_6, qwen3_8)
#   qwen3: '<|im_start|>user\nQUESTION<|im_end|>\n'
#
# Why it matters: agents that were written for newer OpenAI models put their instructions into this role. A model that
# never sees the instructions gets low rewards, or learns them from the rewards, and fails with the instructions of
# production.
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


def render(name: str) -> str:
    """Return the rendering of a developer message and a question, in the form of content that the template reads."""
    parts = name in ("idefics3", "llava_next", "smolvlm")
    conversation = [
        {"role": role, "content": [{"type": "text", "text": text}] if parts else text}
        for role, text in (("developer", "RULES"), ("user", "QUESTION"))
    ]
    return tokenizer.apply_chat_template(conversation, chat_template=templates[name], tokenize=False)


observed: dict[str, list[str]] = {"written": [], "dropped": [], "error": []}
for name in templates:
    try:
        observed["written" if "RULES" in render(name) else "dropped"].append(name)
    except Exception:  # Each template has its own way to fail.
        observed["error"].append(name)
for outcome, names in observed.items():
    print(f"{outcome}: {len(names)} ({', '.join(names)})")
print(f"qwen3: {render('qwen3')!r}")
if [len(names) for names in observed.values()] != [22, 11, 8]:
    sys.exit("The behavior changed.")
END
