#!/usr/bin/env bash
# `map` turns scores into True or False if the column was boolean before.
#
# Versions: datasets 5.2.0, pyarrow 26.0.1.
#
# Expected: the column gets the type of the returned values, as an integer column does, or an error is raised.
#
# Observed: `map` first casts the new values to the old type of the column. It keeps the new type only if this cast
# fails. An integer column raises an error for 0.5, so it becomes a float column. A boolean column accepts each number,
# and each number except 0 becomes True.
#
# Output:
#   column was boolean   [True, False, True, True]
#   column was integer   [0.5, 0.0, 1.0, -1.0]
#   column is new        [0.5, 0.0, 1.0, -1.0]
#
# Why it matters: a column `correct` or `reward` often has booleans, until you replace its scorer by one with partial
# scores or penalties. Half a point and a penalty then become the full reward, without a warning.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile datasets==5.2.0 pyarrow==26.0.1
venv/bin/python - <<'END'
import sys

import datasets

datasets.disable_progress_bars()
scores = [0.5, 0.0, 1.0, -1.0]
observed = {}
for name, before in (("was boolean", {"reward": True}), ("was integer", {"reward": 1}), ("is new", {"answer": "7"})):
    rows = datasets.Dataset.from_list([before] * len(scores))
    observed[name] = rows.map(lambda row, index: {"reward": scores[index]}, with_indices=True)["reward"][:]
    print(f"column {name:14}{observed[name]}")
if list(observed.values()) != [[True, False, True, True], scores, scores]:
    sys.exit("The behavior changed.")
END
