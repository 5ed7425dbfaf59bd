#!/usr/bin/env bash
# A process that imports duckdb and calls `gc.freeze()` prints dozens of lines about leaks when it ends.
#
# Versions: duckdb 2.0.0, orjson 3.13.0, pyarrow 26.0.1.
#
# Expected: `gc.freeze()` prints nothing, because it only tells the garbage collector to ignore present objects. Servers
# call it after they load a model or before they fork.
#
# Observed: duckdb is a nanobind module. nanobind checks at exit that Python has freed each of its objects, and frozen
# objects are never freed. It reports them as leaked, although the process uses no connection, and exits with code 0.
#
# Output (lines on the standard error stream):
#   module    gc.freeze()   without
#   duckdb    leaks         nothing
#   orjson    nothing       nothing
#   pyarrow   nothing       nothing
#   first line: nanobind: leaked 27 instances!
#
# Why it matters: the report comes last, so it hides the real error of a trainer or rollout server, and looks like its
# memory leak. A library that reads parquet files with duckdb is enough.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
    duckdb==2.0.0 orjson==3.13.0 pyarrow==26.0.1
venv/bin/python - <<'END'
import subprocess
import sys

observed = {}
print("module    gc.freeze()   without")
for module in ("duckdb", "orjson", "pyarrow"):
    for call in ("gc.freeze()", ""):
        code = f"import gc, {module}\n{call}"
        process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        observed[module, call] = process.stderr
    frozen, plain = ("leaks" if observed[module, call] else "nothing" for call in ("gc.freeze()", ""))
    print(f"{module:10}{frozen:14}{plain}")
report = observed.pop(("duckdb", "gc.freeze()"))
print("first line:", report.partition("\n")[0])
if not report.startswith("nanobind: leaked") or any(observed.values()):
    sys.exit("The behavior changed.")
END
