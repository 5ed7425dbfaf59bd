#!/usr/bin/env bash
# A custom attention that only calls torch's attention makes rows of a padded batch see their padding.
#
# Versions: transformers 5.10.4, torch 2.13.0 (this script installs torch, which is large on Linux).
#
# Expected: a function that is registered with `AttentionInterface` and passes all its arguments to the `sdpa`
# implementation of transformers gives the logits of `sdpa`.
#
# Observed: the mask of a padded batch is built per name of the attention. For a name that is not registered with
# `AttentionMaskInterface` as well, the layers receive no mask at all, without a warning or an error. A row that is
# padded on the left then attends to its padding. A row without padding is computed as before, so a test with one row
# does not show it.
#
# Output:
#   largest difference of the logits of the last token from those of the row without padding
#     sdpa, padded batch: 0.0e+00
#     wrapper of sdpa, row without padding: 0.0e+00
#     wrapper of sdpa, padded batch: 1.239, masks seen: {None}
#
# Why it matters: kernels for exact log-probs, shared prompts or attention sinks are added this way. Rollouts that are
# batched with left padding are then sampled from another distribution than the trainer's.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile transformers==5.10.4 torch==2.13.0
venv/bin/python - <<'END'
import sys

import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

masks = set()


def attend(module, query, key, value, attention_mask, **options):
    """Note the mask, and call torch's attention."""
    masks.add(None if attention_mask is None else tuple(attention_mask.shape))
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


AttentionInterface.register("wrapper", attend)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    initializer_range=0.1,
)
model = LlamaForCausalLM(config).eval()
ids = torch.randint(3, 64, (2, 8))
ids[0, :4] = 0
mask = (torch.arange(8) >= torch.tensor([[4], [0]])).long()
positions = (mask.cumsum(-1) - 1).clamp(min=0)


@torch.no_grad()
def compute_last(**inputs: torch.Tensor) -> torch.Tensor:
    """Return the logits after the last token of the first row."""
    return model(**inputs).logits[0, -1]


padded = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
alone = compute_last(input_ids=ids[:1, 4:])
of_sdpa = (compute_last(**padded) - alone).abs().max().item()
model.set_attn_implementation("wrapper")
of_row = (compute_last(input_ids=ids[:1, 4:]) - alone).abs().max().item()
of_wrapper = (compute_last(**padded) - alone).abs().max().item()
print("largest difference of the logits of the last token from those of the row without padding")
print(f"  sdpa, padded batch: {of_sdpa:.1e}")
print(f"  wrapper of sdpa, row without padding: {of_row:.1e}")
print(f"  wrapper of sdpa, padded batch: {of_wrapper:.3f}, masks seen: {masks}")
if max(of_sdpa, of_row) > 1e-5 or of_wrapper < 0.01 or masks != {None}:
    sys.exit("The behavior changed.")
END
