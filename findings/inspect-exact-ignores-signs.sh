#!/usr/bin/env bash
# The scorers `exact` and `f1` of Inspect accept wrong numbers, and never accept the answer A.
#
# Versions: inspect-ai 0.3.285.
#
# Expected: `exact` compares the answer with the target, apart from case, spaces and punctuation around it.
#
# Observed: both split the text at each hyphen, so a minus sign is lost. They delete other punctuation, unless Python
# reads the token as a number. They also delete the articles a, an and the, so nothing is left of the answer A, and an
# empty answer never gets points.
#
# Output:
#   answer   target   exact   f1
#   1/2      12       C       1.0
#   -5       5        C       1.0
#   3:4      34       C       1.0
#   a<b      a>b      C       1.0
#   5!       5        C       1.0
#   1.5      15       I       0.0
#   A        A        I       0.0
#   B        B        C       1.0
#
# Why it matters: `exact` is the scorer that a reader of an evaluation expects to be strict. A policy gets points for
# fractions, signs and ratios that are wrong, and all multiple-choice tasks with the target A score 0.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile inspect-ai==0.3.285
venv/bin/python -W ignore - <<'END'
import asyncio
import sys

from inspect_ai.model import ModelOutput
from inspect_ai.scorer import Target, exact, f1
from inspect_ai.solver import TaskState


async def score(scorer, answer, target):
    output = ModelOutput.from_content("model", answer)
    state = TaskState(model="model", sample_id=1, epoch=1, input="question", messages=[], output=output)
    return (await scorer(state, Target(target))).value


rows = [("1/2", "12"), ("-5", "5"), ("3:4", "34"), ("a<b", "a>b"), ("5!", "5"), ("1.5", "15"), ("A", "A"), ("B", "B")]
observed = []
print("answer   target   exact   f1")
for answer, target in rows:
    observed.append([asyncio.run(score(scorer, answer, target)) for scorer in (exact(), f1())])
    print(f"{answer:9}{target:9}{observed[-1][0]:8}{observed[-1][1]}")
if observed != [["C", 1.0]] * 5 + [["I", 0.0]] * 2 + [["C", 1.0]]:
    sys.exit("The behavior changed.")
END
