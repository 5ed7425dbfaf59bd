#!/usr/bin/env bash
# `Dataset.from_list` and parquet files add null arguments to tool calls, and the chat template writes them.
#
# Versions: datasets 5.2.0, pyarrow 26.0.1, transformers 5.10.4, jinja2 3.1.6, with Qwen3's chat template that trl
# 1.16.0 ships.
#
# Expected: the same rows give the same conversation, from a list, from JSON lines and from a parquet file.
#
# Observed: a column of Arrow has one structure, so a call with `city` gets `words: null` if a different call has
# `words`. Since version 5, `datasets` stores such JSON lines as JSON and adds nothing. `from_list` and parquet files
# still add the nulls, and a template writes every key.
#
# Output:
#   JSON lines  {"name": "weather", "arguments": {"city": "Oslo"}}
#   from_list   {"name": "weather", "arguments": {"city": "Oslo", "words": null}}
#   parquet     {"name": "weather", "arguments": {"city": "Oslo", "words": null}}
#
# Why it matters: fine-tuning teaches the model to call each tool with all arguments of all tools. A test on a small
# JSON file does not show it, and the parquet file of the run does.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
  datasets==5.2.0 pyarrow==26.0.1 transformers==5.10.4 jinja2==3.1.6
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps trl==1.16.0
venv/bin/python - <<'END'
import importlib.util
import json
import sys
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

datasets.disable_progress_bars()
template = (Path(importlib.util.find_spec("trl").origin).parent / "chat_templates" / "qwen3.jinja").read_text()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), eos_token="<eos>")


def make_row(name: str, arguments: dict) -> dict:
    """Return a row with a conversation that has one tool call."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]}


rows = [make_row("weather", {"city": "Oslo"}), make_row("count", {"words": 3})]
Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "rows.parquet")
data = {
    "JSON lines": datasets.load_dataset("json", data_files="rows.jsonl", split="train", cache_dir="cache"),
    "from_list": datasets.Dataset.from_list(rows),
    "parquet": datasets.load_dataset("parquet", data_files="rows.parquet", split="train", cache_dir="cache"),
}
observed = []
for name, read in data.items():
    text = tokenizer.apply_chat_template(read[0]["messages"], chat_template=template, tokenize=False)
    observed.append(text.split("<tool_call>\n")[1].split("\n</tool_call>")[0])
    print(f"{name:12}{observed[-1]}")
nulls = '{"name": "weather", "arguments": {"city": "Oslo", "words": null}}'
if observed != ['{"name": "weather", "arguments": {"city": "Oslo"}}', nulls, nulls]:
    sys.exit("The behavior changed.")
END
