#!/usr/bin/env bash
# `load_dataset` returns the old rows of a changed file if the file has its old time stamp.
#
# Versions: datasets 5.2.0, pyarrow 26.0.1.
#
# Expected: the cache is keyed by the content of a local file, or at least by its size and its time. A file with other
# rows is read again, and `Dataset._fingerprint` changes with the content and only with it.
#
# Observed: the key is the path and the time of the last change. A corrected file with the old time gives the old rows,
# also if its size differs. A touched file with the same rows has a new fingerprint, so the fingerprint neither shows
# nor excludes a change.
#
# Output:
#   first load                      answer 4      fingerprint is new
#   other content, same time        answer 4      fingerprint is the same
#   same content, other time        answer 2222   fingerprint is new
#
# Why it matters: `rsync -a`, `cp -p`, `tar` and reproducible images keep or fix time stamps. A run then trains on the
# answer key before its correction, and the fingerprint in its log says that nothing changed.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile datasets==5.2.0 pyarrow==26.0.1
venv/bin/python - <<'END'
import json
import os
import sys
from pathlib import Path

import datasets

datasets.disable_progress_bars()
file = Path("rows.jsonl")
observed: list[tuple[str, bool]] = []
seen: set[str] = set()


def load(name: str, answer: str, seconds: int) -> None:
    """Write a row with a time stamp, load it, and print the loaded row."""
    file.write_text(json.dumps({"answer": answer}) + "\n")
    os.utime(file, (seconds, seconds))
    rows = datasets.load_dataset("json", data_files=str(file), split="train", cache_dir="cache")
    observed.append((rows[0]["answer"], rows._fingerprint not in seen))
    seen.add(rows._fingerprint)
    print(f"{name:32}answer {observed[-1][0]:7}fingerprint is {'new' if observed[-1][1] else 'the same'}")


load("first load", "4", seconds=1_700_000_000)
load("other content, same time", "2222", seconds=1_700_000_000)
load("same content, other time", "2222", seconds=1_700_000_001)
if observed != [("4", True), ("4", False), ("2222", True)]:
    sys.exit("The behavior changed.")
END
