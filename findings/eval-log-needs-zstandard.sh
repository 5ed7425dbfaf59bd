#!/usr/bin/env bash
# inspect-ai writes its logs as zip files that the zip readers of Python before 3.14 and of many systems cannot read.
#
# Versions: inspect-ai 0.3.285.
#
# Expected: an `.eval` log is a zip file of JSON members, so `zipfile` and `unzip` read it without inspect-ai, as the
# logs of earlier versions (compressed with Deflate, method 8).
#
# Observed: the members have compression method 93 (Zstandard). `namelist` lists them, and `read` raises
# NotImplementedError with Python 3.11 to 3.13. A script that imports inspect_ai reads them with the same `zipfile`,
# because one of its requirements changes that module of the standard library when it is imported.
#
# Output:
#   member header.json: method 93
#   zipfile: NotImplementedError
#   zipfile after `import inspect_ai`: reads it
#
# Why it matters: scripts that collect evaluations from many machines read logs with the standard library. They now need
# inspect-ai itself, a package for Zstandard, or Python 3.14.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile inspect-ai==0.3.285
HOME="$directory" INSPECT_DISPLAY=none venv/bin/python -W ignore - <<'END'
from inspect_ai import Task, eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.scorer import exact
from inspect_ai.solver import generate

task = Task(dataset=[Sample(input="1 + 1", target="2")], solver=generate(), scorer=exact())
[log] = evaluate(task, model="mockllm/model", log_dir="logs", log_format="eval", display="none")
END
cat > read.py <<'END'
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as archive:
    if len(sys.argv) == 2:
        print("member header.json: method", archive.getinfo("header.json").compress_type)
    else:
        import inspect_ai
    name = "zipfile" if len(sys.argv) == 2 else "zipfile after `import inspect_ai`"
    try:
        archive.read("header.json")
        print(f"{name}: reads it")
    except NotImplementedError as error:
        print(f"{name}: {type(error).__name__}")
END
log=$(find logs -name '*.eval')
{ venv/bin/python read.py "$log"; venv/bin/python -W ignore read.py "$log" imported; } | tee found
if ! grep -q "method 93" found || ! grep -q "inspect_ai\`: reads it" found; then
  echo "The behavior changed."
  exit 1
fi
if venv/bin/python -c 'import sys; sys.exit(sys.version_info >= (3, 14))' && ! grep -q "zipfile: NotImplementedError" found; then
  echo "The behavior changed."
  exit 1
fi
