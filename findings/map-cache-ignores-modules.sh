#!/usr/bin/env bash
# After you edit an imported function, `Dataset.map` returns the results of the old function.
#
# Versions: datasets 5.2.0, dill 0.4.1.
#
# Expected: the cache of `map` is keyed by a hash of the function's code and of the functions that it calls. An edit of
# the function runs it again.
#
# Observed: functions of the main script are hashed by their code, and functions of an imported module by their name. So
# an edit in a module of one's project is not seen in the next process. The old column is read from the cache, without a
# warning.
#
# Output:
#   function in the script    before: v1 hi   after the edit: v2 hi
#   function in a module      before: v1 hi   after the edit: v1 hi
#   called by the script's    before: v1 hi   after the edit: v1 hi
#
# Why it matters: prompts are made in a module of the project, for example `prepare.py`. After a fix of the prompt, the
# new run trains on the old one, and only a look at the rows shows it.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile datasets==5.2.0 dill==0.4.1
echo '{"question": "hi"}' > rows.jsonl

# Run the preparation with version $1 of each function.
prepare() {
  echo "def add_prompt(row): return {'prompt': '$1 ' + row['question']}" > project.py
  cat > prepare.py <<END
import datasets
import project

datasets.disable_progress_bars()
rows = datasets.load_dataset("json", data_files="rows.jsonl", split="train", cache_dir="cache")


def add_prompt(row):
    return {"prompt": "$1 " + row["question"]}


def call_project(row):
    return project.add_prompt(row)


print(*(rows.map(function)[0]["prompt"] for function in (add_prompt, project.add_prompt, call_project)), sep="\n")
END
  # Without files of bytecode, an edit within a second is seen by the import itself.
  PYTHONDONTWRITEBYTECODE=1 venv/bin/python prepare.py
}

prepare v1 > before
prepare v2 > after
printf '%s\n' "function in the script" "function in a module" "called by the script's" > names
paste -d '|' names before after | awk -F '|' '{ printf "%-26sbefore: %-8safter the edit: %s\n", $1, $2, $3 }'
test "$(cat before | tr '\n' ,)" = "v1 hi,v1 hi,v1 hi," -a "$(cat after | tr '\n' ,)" = "v2 hi,v1 hi,v1 hi," || {
  echo "The behavior changed." >&2
  exit 1
}
