#!/usr/bin/env bash
# One long row changes a model with dynamic RoPE until the process ends.
#
# Versions: transformers 5.10.4, torch 2.13.0 (this script installs torch, which is large on Linux).
#
# Expected: a model in evaluation mode is a function of its input and its weights. RoPE of the type `dynamic` rescales
# its frequencies for a sequence beyond `max_position_embeddings`, and resets them for the next short one.
#
# Observed: log-probs of a short row differ after a long row was computed. The code stores the length under the name
# `None_max_seq_len_cached` and looks for `max_seq_len_cached`, so the reset never happens.
#
# Output:
#   largest difference of log-probs of a row of 32 tokens, maximum 128 positions
#     after a row of 128 tokens: 0.00
#     after a row of 200 tokens: 13.19
#
# Why it matters: one row that is too long changes the log-probs of all later steps, also of the frozen reference model.
# The KL term and the importance ratios then measure this change, and a restart removes it.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile transformers==5.10.4 torch==2.13.0
venv/bin/python - <<'END'
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=128,
    initializer_range=0.5,
    rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
)
model = LlamaForCausalLM(config).eval()
short = torch.randint(0, 64, (1, 32))


@torch.no_grad()
def compute_logprobs(ids: torch.Tensor) -> torch.Tensor:
    """Return the log-probs of all tokens at all positions."""
    return model(ids).logits.log_softmax(-1)


before = compute_logprobs(short)
print("largest difference of log-probs of a row of 32 tokens, maximum 128 positions")
observed = []
for length in (128, 200):
    compute_logprobs(torch.randint(0, 64, (1, length)))
    observed.append((compute_logprobs(short) - before).abs().max().item())
    print(f"  after a row of {length} tokens: {observed[-1]:.2f}")
if observed[0] > 1e-3 or observed[1] < 0.1:
    sys.exit("The behavior changed.")
END
