#!/usr/bin/env bash
# verifiers saves log-probs, advantages and entropies as JSON with 4 decimals, and their sums are wrong.
#
# Version: verifiers 0.4.0.
#
# Expected: a saved trace has the numbers of the trace in memory, as JSON can write each float without loss.
#
# Observed: values of tokens are rounded to 4 decimals. If the model is almost certain of a token, its log-prob is above
# -0.00005 and becomes -0.0. The rounding errors of a response have the same sign and add up: the probability of 32,000
# such tokens is wrong by a factor of 3.6. An advantage of 0.00004 becomes 0. `model_dump` keeps all digits, so a test
# with it does not show the error. `to_record` also writes 4 decimals by default.
#
# Output:
#   in memory: sum of log-probs -1.28
#   from JSON: sum of log-probs 0.0, so the ratio of the two probabilities is 3.6
#   advantage 4e-05 from JSON: 0.0
#
# Why it matters: if you train on saved traces, the importance ratios of whole responses are wrong. Write traces for
# training with `to_record(float_decimals=None)`, or compute the log-probs again.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile verifiers==0.4.0
cat > trace.py <<'END'
import math

from verifiers.v1.graph import MessageNode
from verifiers.v1.types import AssistantMessage

NUMBER = 32_000
node = MessageNode(
    message=AssistantMessage(role="assistant", content="a long and almost certain response"),
    token_ids=list(range(NUMBER)),
    mask=[True] * NUMBER,
    logprobs=[-0.00004] * NUMBER,
    advantages=[0.00004] * NUMBER,
    sampled=True,
)
saved = MessageNode.model_validate_json(node.model_dump_json())
assert MessageNode.model_validate(node.model_dump()).logprobs == node.logprobs
before, after = math.fsum(node.logprobs), math.fsum(saved.logprobs)
print(f"in memory: sum of log-probs {before:.2f}")
print(f"from JSON: sum of log-probs {abs(after)}, so the ratio of the two probabilities is {math.exp(after - before):.1f}")
print(f"advantage {node.advantages[0]} from JSON: {saved.advantages[0]}")
END
venv/bin/python trace.py | tee printed
diff printed - <<'END' || { echo "The behavior changed."; exit 1; }
in memory: sum of log-probs -1.28
from JSON: sum of log-probs 0.0, so the ratio of the two probabilities is 3.6
advantage 4e-05 from JSON: 0.0
END
