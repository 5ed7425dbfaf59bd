#!/usr/bin/env bash
# On a CPU, SiLU of the same number has other bits in a tensor of a different size.
#
# Versions: torch 2.13.0 (this script installs torch, which is large on Linux).
#
# Expected: an elementwise function depends on the element only. Sums depend on the shape of a tensor, because their
# order changes. So a batch-invariant forward pass needs care with matrix products, norms and attention.
#
# Observed: SiLU, sigmoid and GELU (tanh) compute full vectors with one implementation of exp and tanh, and the last
# elements of a tensor with another. Here 5 rows of an MLP of width 48 differ from the same rows alone. `exp` and `tanh`
# themselves do not depend on the size. Widths that are multiples of 32 have no such elements.
#
# Output (with AVX-512; with AVX2 the counts are 27, 22 and 30):
#   lengths from 1 to 100 at which the first elements have other bits than in a tensor of 1,000
#     silu 56, sigmoid 54, gelu (tanh) 60, exp 0, tanh 0
#   with a width of 64: rows in a batch and alone are equal: True
#
# Why it matters: log-probs of a token then depend on how many other tokens share the pass, even if all products and
# sums are batch-invariant. It shows only in models with an odd width, such as the small ones of tests.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile torch==2.13.0
venv/bin/python - <<'END'
import sys

import torch
from torch.nn.functional import gelu, silu

torch.manual_seed(0)
numbers = torch.randn(1000)
functions = {
    "silu": silu,
    "sigmoid": torch.sigmoid,
    "gelu (tanh)": lambda x: gelu(x, approximate="tanh"),
    "exp": torch.exp,
    "tanh": torch.tanh,
}
counts = {
    name: sum(not torch.equal(function(numbers[:n].clone()), function(numbers)[:n]) for n in range(1, 101))
    for name, function in functions.items()
}
print(f"vector instructions: {torch.backends.cpu.get_cpu_capability()}")
print("lengths from 1 to 100 at which the first elements have other bits than in a tensor of 1,000")
print("  " + ", ".join(f"{name} {count}" for name, count in counts.items()))
rows = torch.randn(5, 64)
equal = all(torch.equal(silu(rows)[i], silu(rows[i : i + 1])[0]) for i in range(5))
print(f"  with a width of 64: rows in a batch and alone are equal: {equal}")
if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
    print("not compared: the kernels of this processor are different ones")
elif counts["exp"] or counts["tanh"] or not equal or 0 in (counts["silu"], counts["sigmoid"], counts["gelu (tanh)"]):
    sys.exit("The behavior changed.")
END
