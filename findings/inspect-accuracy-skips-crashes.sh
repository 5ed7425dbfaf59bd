#!/usr/bin/env bash
# inspect-ai's accuracy is the accuracy of the samples that did not crash, and the log's status is still `success`.
#
# Version: inspect-ai 0.3.285.
#
# Expected: with `fail_on_error=False`, a sample counts as wrong if its tool or environment crashes. Or the status shows
# that the accuracy does not include all samples.
#
# Observed: samples with an error have no score, so the accuracy does not include them. It does not include scores of
# NaN or None either. With three crashes in four samples, accuracy is 1.0 with standard error 0. Crashes lower
# `completed_samples`, but scores of NaN or None do not.
#
# Output:
#   no crash               success, accuracy 1.0, 4 of 4 completed
#   three crashes          success, accuracy 1.0, 1 of 4 completed
#   three scores of NaN    success, accuracy 1.0, 4 of 4 completed
#   three scores of None   success, accuracy 1.0, 4 of 4 completed
#
# Why it matters: hard tasks crash more often, for example because of a timeout in a sandbox. A checkpoint that crashes
# on these tasks looks better than a checkpoint with wrong answers. Compare `completed_samples` and the number of scores,
# not only accuracies.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile inspect-ai==0.3.285
cat > accuracy.py <<'END'
import math

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import Score, accuracy, scorer, stderr
from inspect_ai.solver import solver


@solver
def answer():
    async def solve(state, generate):
        if state.input_text == "crash":
            raise RuntimeError("the sandbox is gone")
        state.output = ModelOutput.from_content("mockllm/model", "42")
        return state

    return solve


@scorer(metrics=[accuracy(), stderr()])
def grade():
    async def score(state, target):
        if state.input_text == "NaN":
            return Score(value=math.nan)
        if state.input_text == "None":
            return None
        return Score(value="C")

    return score


for name, others in (
    ("no crash", "question"),
    ("three crashes", "crash"),
    ("three scores of NaN", "NaN"),
    ("three scores of None", "None"),
):
    samples = [Sample(input=text, target="42") for text in ("question", others, others, others)]
    task = Task(dataset=samples, solver=answer(), scorer=grade())
    (log,) = eval(task, model="mockllm/model", fail_on_error=False, display="none", log_dir="logs")
    (score,), results = log.results.scores, log.results
    value = score.metrics["accuracy"].value
    completed = f"{results.completed_samples} of {results.total_samples} completed"
    print(f"{name:22} {log.status}, accuracy {value}, {completed}")
END
venv/bin/python accuracy.py 2> /dev/null | tee printed
diff printed - <<'END' || { echo "The behavior changed."; exit 1; }
no crash               success, accuracy 1.0, 4 of 4 completed
three crashes          success, accuracy 1.0, 1 of 4 completed
three scores of NaN    success, accuracy 1.0, 4 of 4 completed
three scores of None   success, accuracy 1.0, 4 of 4 completed
END
