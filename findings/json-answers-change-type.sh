#!/usr/bin/env bash
# Answers that look like dates, and integers of 20 digits, change when `datasets` reads JSON lines.
#
# Versions: datasets 5.2.0, pyarrow 26.0.1.
#
# Expected: JSON has strings and numbers only, so a string stays a string. An integer that is too large for 64 bits is
# an error or stays exact, because `Dataset.from_list` raises an error for it.
#
# Observed: if all strings of a column are dates, the column becomes a timestamp. One answer that is no date keeps all
# of them strings, so the type of one row depends on other rows. A large integer turns its column into floats without an
# error.
#
# Output:
#   "2024-05-01", "1999-12-31"   datetime.datetime(2024, 5, 1, 0, 0), datetime.datetime(1999, 12, 31, 0, 0)
#   "2024-05-01", "Tuesday"      '2024-05-01', 'Tuesday'
#   12345678901234567891, 2      1.2345678901234567e+19, 2.0
#   from_list: OverflowError
#
# Why it matters: a reward compares the response with `str(answer)`. `2024-05-01 00:00:00` and `1.2345678901234567e+19`
# are never equal to a right response, so these tasks have reward 0 forever.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile datasets==5.2.0 pyarrow==26.0.1
venv/bin/python - <<'END'
import json
import sys
from datetime import datetime
from pathlib import Path

import datasets

datasets.disable_progress_bars()
expected = {
    ("2024-05-01", "1999-12-31"): [datetime(2024, 5, 1), datetime(1999, 12, 31)],
    ("2024-05-01", "Tuesday"): ["2024-05-01", "Tuesday"],
    (12345678901234567891, 2): [1.2345678901234567e19, 2.0],
}
observed = {}
for i, answers in enumerate(expected):
    file = Path(f"{i}.jsonl")
    file.write_text("".join(json.dumps({"answer": answer}) + "\n" for answer in answers))
    rows = datasets.load_dataset("json", data_files=str(file), split="train", cache_dir="cache")
    observed[answers] = list(rows["answer"])
    print(f"{json.dumps(answers)[1:-1]:29}{repr(observed[answers])[1:-1]}")
try:
    datasets.Dataset.from_list([{"answer": 12345678901234567891}])
    error = "none"
except OverflowError:
    error = "OverflowError"
print("from_list:", error)
if observed != expected or error == "none":
    sys.exit("The behavior changed.")
END
