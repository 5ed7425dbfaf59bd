#!/usr/bin/env bash
# verl's logger to a file writes a loss or gradient norm that is not a number, or infinite, as null.
#
# Versions: verl 0.9.1, orjson 3.11.4.
#
# Expected: the file has NaN and Infinity, as Python's module json writes them, or text, as verl prints on the console.
#
# Observed: both become null, because orjson has no other form. A reader cannot tell a loss that diverged from a metric
# without a value, nor NaN from infinity, and filters for missing values remove exactly the steps of the fault.
#
# Output:
#   {"step":7,"data":{"actor/loss":null,"actor/grad_norm":null,"actor/entropy":1.5}}
#
# Why it matters: a run whose weights are lost looks like a run that stopped logging its loss. Readers of this log must
# report null under a key that had numbers before.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
pip() { venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile "$@"; }
pip orjson==3.11.4 packaging numpy==2.3.5
pip --no-deps verl==0.9.1
cat > log.py <<'END'
import importlib.util
import math
from importlib.metadata import distribution

import numpy

# The module by its file, because the package's other modules need torch and ray.
path = distribution("verl").locate_file("verl/utils/tracking.py")
spec = importlib.util.spec_from_file_location("tracking", path)
tracking = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tracking)
logger = tracking.FileLogger("project", "run")
logger.log({"actor/loss": math.nan, "actor/grad_norm": numpy.float32(math.inf), "actor/entropy": 1.5}, step=7)
logger.finish()
END
venv/bin/python log.py > printed
cat project/run.jsonl
if ! grep -qF '{"step":7,"data":{"actor/loss":null,"actor/grad_norm":null,"actor/entropy":1.5}}' project/run.jsonl; then
  echo "The behavior changed."
  exit 1
fi
