#!/usr/bin/env bash
# `Dataset.from_list` and `Table.from_pylist` drop each key that the first row does not have.
#
# Versions: datasets 5.2.0, pyarrow 26.0.1.
#
# Expected: rows with different keys get the union of the columns, with nulls, or raise an error. `load_dataset("json")`
# makes the union.
#
# Observed: the columns are the keys of the first row, which one sentence of both documentations mentions. Keys that
# only later rows have are lost, without a warning. In a nested dictionary the same functions do make the union. So a
# list of rows keeps or loses a key, depending on its depth and on the order of the rows.
#
# Output:
#   datasets from_list        [{'prompt': 'a'}, {'prompt': 'b'}]
#   pyarrow from_pylist       [{'prompt': 'a'}, {'prompt': 'b'}]
#   from_list, rows reversed  [{'prompt': 'b', 'answer': '7'}, {'prompt': 'a', 'answer': None}]
#   from_list, nested         [{'row': {'prompt': 'a', 'answer': None}}, {'row': {'prompt': 'b', 'answer': '7'}}]
#   JSON lines                [{'prompt': 'a', 'answer': None}, {'prompt': 'b', 'answer': '7'}]
#
# Why it matters: optional keys, for example `tools`, `answer` or `images`, are usual in mixed training data. A shuffled
# list trains with or without them, depending on its seed.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile datasets==5.2.0 pyarrow==26.0.1
venv/bin/python - <<'END'
import json
import sys
from pathlib import Path

import datasets
import pyarrow

datasets.disable_progress_bars()
rows = [{"prompt": "a"}, {"prompt": "b", "answer": "7"}]
file = Path("rows.jsonl")
file.write_text("".join(json.dumps(row) + "\n" for row in rows))
observed = {
    "datasets from_list": datasets.Dataset.from_list(rows).to_list(),
    "pyarrow from_pylist": pyarrow.Table.from_pylist(rows).to_pylist(),
    "from_list, rows reversed": datasets.Dataset.from_list(rows[::-1]).to_list(),
    "from_list, nested": datasets.Dataset.from_list([{"row": row} for row in rows]).to_list(),
    "JSON lines": datasets.load_dataset("json", data_files=str(file), split="train", cache_dir="cache").to_list(),
}
for name, read in observed.items():
    print(f"{name:26}{read}")
lost = [{"prompt": "a"}, {"prompt": "b"}]
union = [{"prompt": "a", "answer": None}, rows[1]]
if list(observed.values()) != [lost, lost, union[::-1], [{"row": row} for row in union], union]:
    sys.exit("The behavior changed.")
END
