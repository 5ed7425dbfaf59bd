#!/usr/bin/env bash
# One chat template and one tool give three prompts: by transformers, by Jinja and by MiniJinja.
#
# Versions: transformers 5.10.4, jinja2 3.1.6, minijinja 3.1.0, with Qwen3's chat template that trl 1.16.0 ships.
#
# Expected: a chat template is a Jinja template, so each engine of Jinja renders the same text.
#
# Observed: the three filters `tojson` differ. Transformers replaces the filter of jinja2. It keeps the order of keys
# and all characters. Jinja2's own filter sorts the keys and escapes `<`, `>`, `&` and `'` for HTML. MiniJinja, which
# servers in Rust use, keeps the order and escapes.
#
# Output:
#   transformers  {"type": "function", "function": {"name": "look", "description": "x < 5 & y > 'a'"}}
#   jinja2        {"function": {"description": "x \u003c 5 \u0026 y \u003e \u0027a\u0027", "name": "look"}, "type": "function"}
#   minijinja     {"type": "function", "function": {"name": "look", "description": "x \u003c 5 \u0026 y \u003e \u0027a\u0027"}}
#
# Why it matters: a rollout server with a different engine samples after prompts that training never sees. It affects
# only tools and arguments with these characters, so a test with a simple tool passes.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
  transformers==5.10.4 jinja2==3.1.6 minijinja==3.1.0
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps trl==1.16.0
venv/bin/python - <<'END'
import importlib.util
import sys
from pathlib import Path

import jinja2
import minijinja
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

templates = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
template = (templates / "qwen3.jinja").read_text()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), eos_token="<eos>")
messages = [{"role": "user", "content": "QUESTION"}]
tools = [{"type": "function", "function": {"name": "look", "description": "x < 5 & y > 'a'"}}]
engines = {
    "transformers": tokenizer.apply_chat_template(messages, tools=tools, chat_template=template, tokenize=False),
    "jinja2": jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    .from_string(template)
    .render(messages=messages, tools=tools),
    "minijinja": minijinja.Environment(trim_blocks=True, lstrip_blocks=True).render_str(
        template, messages=messages, tools=tools
    ),
}
observed = {name: text.split("<tools>\n")[1].split("\n</tools>")[0] for name, text in engines.items()}
for name, line in observed.items():
    print(f"{name:14}{line}")
if observed != {
    "transformers": """{"type": "function", "function": {"name": "look", "description": "x < 5 & y > 'a'"}}""",
    "jinja2": r"""{"function": {"description": "x \u003c 5 \u0026 y \u003e \u0027a\u0027", "name": "look"}, "type": "function"}""",
    "minijinja": r"""{"type": "function", "function": {"name": "look", "description": "x \u003c 5 \u0026 y \u003e \u0027a\u0027"}}""",
}:
    sys.exit("The behavior changed.")
END
