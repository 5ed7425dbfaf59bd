#!/usr/bin/env bash
# TRL's packing mixes the rows of models with recurrent layers, without a warning, if their kernels are not installed.
#
# Versions: trl 1.16.0, transformers 5.10.4, torch 2.13.0 (this script installs torch, which is large on Linux).
#
# Expected: `packing=True` of SFTTrainer "preserves sequence boundaries" (strategies `bfd` and `bfd_split`), so a row has
# the same logits in a packed sequence as in its own sequence. If a model cannot do that, the trainer raises an error.
#
# Observed: the collator sends positions that start again at each row, `cu_seq_lens_q` and `seq_idx`. Attention uses the
# positions, with `sdpa` and with `eager`, on a CPU too: a row of Qwen3, Llama or Gemma 3 sees no other row. Without the
# packages causal-conv1d, mamba-ssm and flash-linear-attention, the recurrent layers and convolutions of Qwen3.5,
# Qwen3-Next, LFM2, Falcon-H1, Nemotron-H and Mamba 2 ignore all three. A row then starts with the state after the row
# before it. Only Bamba and Granite 4 raise an error: "`seq_idx` support requires fast path support".
#
# Output:
#   Qwen3      sdpa   largest difference of a logit: 1.8e-07
#   Qwen3      eager  largest difference of a logit: 1.9e-07
#   Qwen3_5    sdpa   largest difference of a logit: 7.3e-02
#   Qwen3Next  sdpa   largest difference of a logit: 7.5e-02
#   Lfm2       sdpa   largest difference of a logit: 9.1e-04
#   Mamba2     eager  largest difference of a logit: 3.3e+00
#
# Why it matters: the loss looks normal, but it is not the loss without packing. A machine without these kernels trains
# a different model from the same script.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile trl==1.16.0 transformers==5.10.4 torch==2.13.0
HF_HUB_OFFLINE=1 venv/bin/python -W ignore - <<'END'
import sys

import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

transformers.logging.set_verbosity_error()
shape = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4}
shape |= {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
attention = {"num_hidden_layers": 2, "head_dim": 16}
delta = {"num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
delta |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
convolution = {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
state_space = {"num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1}
families = [
    ("Qwen3", "sdpa", "Qwen3Config", attention, False),
    ("Qwen3", "eager", "Qwen3Config", attention, False),
    ("Qwen3_5", "sdpa", "Qwen3_5TextConfig", delta, True),
    ("Qwen3Next", "sdpa", "Qwen3NextConfig", delta | experts, True),
    ("Lfm2", "sdpa", "Lfm2Config", convolution, True),
    ("Mamba2", "eager", "Mamba2Config", state_space, True),
]
rows = [list(range(10 + 20 * number, 10 + 20 * number + length)) for number, length in enumerate((12, 9, 7))]
words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(128)}, unk_token="w0"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0", eos_token="w1")


def largest_difference(name, attention, config):
    """Return the largest difference of a logit of a packed row from the row's own logits."""
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}ForCausalLM")
    model = kind._from_config(config, attn_implementation=attention).eval()
    settings = SFTConfig(
        output_dir="out", packing=True, max_length=64, use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=1
    )
    data = Dataset.from_list([{"input_ids": row} for row in rows])
    trainer = SFTTrainer(model=model, args=settings, train_dataset=data, processing_class=tokenizer)
    [batch] = trainer.get_train_dataloader()
    tokens = batch["input_ids"][0].tolist()
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    with torch.no_grad():
        packed = model(**inputs, use_cache=False).logits[0]
        found = 0.0
        for row in rows:
            start = tokens.index(row[0])
            alone = model(input_ids=torch.tensor([row]), use_cache=False).logits[0]
            found = max(found, float((packed[start : start + len(row)] - alone).abs().max()))
    return found


changed = False
for name, attention, config, values, mixes in families:
    found = largest_difference(name, attention, getattr(transformers, config)(**shape, **values))
    print(f"{name:10} {attention:6} largest difference of a logit: {found:.1e}")
    changed = changed or (found > 1e-4) != mixes
if changed:
    sys.exit("The behavior changed.")
END
