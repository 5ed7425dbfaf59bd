#!/usr/bin/env bash
# math-verify reads times, repeating decimals, bases and assignments as other values, so wrong answers are right.
#
# Versions: math-verify 0.9.0, latex2sympy2-extended 1.11.0.
#
# Expected: `verify(parse(gold), parse(answer))` is True for equal values, and False if one of the two cannot be read.
#
# Observed: no input is an error. A time is a quotient, a repeating decimal is its integer, the base of a number is
# ignored, `1e3` is 1, and the order of assignments is ignored.
#
# Output:
#   gold                  wrong answer            right answer
#   $12:30$               $0.4$           True    $12:30$         True
#   $0.\overline{3}$      $0$             True    $\frac{1}{3}$   False
#   $1011_2$              $1011_3$        True    $11$            False
#   1e3                   1               True    1000            False
#   $a=1, b=2$            $2, 1$          True    $1, 2$          True
#
# Why it matters: a policy gets rewards for wrong answers and none for right ones, only in the tasks with these forms.
# The mean reward hides it. Look for colons, `\overline`, subscripts and exponents in your answers before you train.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile math-verify==0.9.0 latex2sympy2-extended==1.11.0
venv/bin/python - <<'END'
import sys

from math_verify import parse, verify

rows = [
    ("$12:30$", "$0.4$", "$12:30$"),
    (r"$0.\overline{3}$", "$0$", r"$\frac{1}{3}$"),
    ("$1011_2$", "$1011_3$", "$11$"),
    ("1e3", "1", "1000"),
    ("$a=1, b=2$", "$2, 1$", "$1, 2$"),
]
print(f"{'gold':22}{'wrong answer':24}right answer")
observed = []
for gold, wrong, right in rows:
    observed.append([verify(parse(gold), parse(answer)) for answer in (wrong, right)])
    print(f"{gold:22}{wrong:16}{observed[-1][0]!s:8}{right:16}{observed[-1][1]}")
if observed != [[True, True], [True, False], [True, False], [True, False], [True, True]]:
    sys.exit("The behavior changed.")
END
