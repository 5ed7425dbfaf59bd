"""A small model for vLLM, whose CPU kernels support few head sizes: 32 is the smallest, and `tiny` has 16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rllm_local import tiny

MAX_CONTEXT = 256


def save_model(directory: Path, tokenizer: Any = None) -> None:
    """Write a Llama with grouped heads of size 32, random weights, and a tokenizer, by default `tiny`'s."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokenizer or tiny.build_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.12,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
