#!/usr/bin/env bash
# Qwen3's chat template renders a message with content parts as an empty message, without an error.
#
# Versions: transformers 5.10.4, jinja2 3.1.6, with the 41 original chat templates that trl 1.16.0 ships.
#
# Expected: `content` is a string or a list of parts, `[{"type": "text", "text": "…"}]`, as in the OpenAI format. A
# text-only template raises an error for a list, or joins the text of its parts.
#
# Observed: the templates of Qwen3 and Qwen3-Instruct-2507 write the frame of the message without its text, for users
# and assistants. Eleven templates, for example Llama 3 and Nemotron 3, write the list as Python code or JSON into the
# prompt. Only seven raise an error. In the other direction, three templates of vision models lose a string.
#
# Output:
#   content   rendered  lost  code  error
#   string          38     3     0      0
#   parts           21     2    11      7
#   qwen3: '<|im_start|>user\n<|im_end|>\n'
#   llama3: "<bos><|start_header_id|>user<|end_header_id|>\n\n[{'type': 'text', 'text': 'QUESTION'}]<|eot_id|>"
#
# Why it matters: clients of agents and multimodal data sets use parts. Each prompt of such a run on Qwen3 is empty, the
# run has no error, and the rewards look like a weak model's.
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
from collections import Counter
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

package = Path(importlib.util.find_spec("trl").origin).parent
templates = {p.stem: p.read_text() for p in (package / "chat_templates").glob("*.jinja") if "_training" not in p.stem}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), bos_token="<bos>", eos_token="<eos>")
PARTS = [{"type": "text", "text": "QUESTION"}]


def render(name: str, content: object) -> str:
    """Return the rendering of a user's message."""
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], chat_template=templates[name], tokenize=False
    )


def classify(name: str, content: object) -> str:
    """Return the column of a template and a content."""
    try:
        text = render(name, content)
    except Exception:  # Each template has its own way to fail.
        return "error"
    return "lost" if "QUESTION" not in text else "code" if "'type'" in text or '"type"' in text else "rendered"


columns = ["rendered", "lost", "code", "error"]
print("content ", *columns, sep="  ")
observed = []
for form, content in (("string", "QUESTION"), ("parts", PARTS)):
    counts = Counter(classify(name, content) for name in templates)
    observed.append([counts[column] for column in columns])
    print(f"{form:8}", *(f"{counts[column]:{len(column)}}" for column in columns), sep="  ")
for name in ("qwen3", "llama3"):
    print(f"{name}: {render(name, PARTS)!r}")
if observed != [[38, 3, 0, 0], [21, 2, 11, 7]] or "QUESTION" in render("qwen3", PARTS):
    sys.exit("The behavior changed.")
END
