#!/usr/bin/env bash
# A new LoRA adapter that is initialized with PiSSA or OLoRA changes the model that `disable_adapter` gives.
#
# Versions: peft 0.21.2, transformers 5.10.4, torch 2.13.0.
#
# Expected: a new adapter changes no output. `disable_adapter()` gives the model from which the training starts, so its
# log-probs are those of the reference model.
#
# Observed: with `init_lora_weights="pissa"` or `"olora"`, the model with the adapter is the original one up to
# rounding. The start of the adapter is subtracted from the base weights, so the model with its adapter disabled is a
# third model that nobody has trained. No warning.
#
# Output (largest difference of log-probs from the original model, before any training):
#   True      with the adapter 0.0000  disabled 0.0000
#   gaussian  with the adapter 0.0000  disabled 0.0000
#   pissa     with the adapter 0.0000  disabled 0.1191
#   olora     with the adapter 0.0000  disabled 0.2232
#
# Why it matters: trainers get the reference of a KL term or of DPO from the disabled adapter, because this needs no
# second model. With these initializations the KL is not 0 at the first step, and the term pulls the policy to the third
# model.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
  peft==0.21.2 transformers==5.10.4 torch==2.13.0
venv/bin/python - <<'END'
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
ROW = torch.arange(1, 9)[None]


@torch.no_grad()
def find_differences(initialization: bool | str) -> tuple[float, float]:
    """Print and return how far the model with a new adapter, and with it disabled, is from the original model."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, **SIZES)).eval()
    original = model(ROW).logits.log_softmax(-1)
    config = LoraConfig(r=4, init_lora_weights=initialization, target_modules="all-linear")
    adapted = get_peft_model(model, config).eval()
    enabled = (adapted(ROW).logits.log_softmax(-1) - original).abs().max().item()
    with adapted.disable_adapter():
        disabled = (adapted(ROW).logits.log_softmax(-1) - original).abs().max().item()
    print(f"{initialization!s:10}with the adapter {enabled:.4f}  disabled {disabled:.4f}")
    return enabled, disabled


observed = {each: find_differences(each) for each in (True, "gaussian", "pissa", "olora")}
is_same = all(enabled < 1e-5 for enabled, _ in observed.values())
is_third = {each for each, (_, disabled) in observed.items() if disabled > 0.01} == {"pissa", "olora"}
if not (is_same and is_third):
    sys.exit("The behavior changed.")
END
