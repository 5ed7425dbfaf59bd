"""Log-probs in pieces, of models whose decoders are called and placed in different ways."""

from __future__ import annotations

import pytest
import torch

from rllm_tinker_server.examples import target_logprobs


@pytest.mark.parametrize("family", ["GPTNeoX", "OPT", "Phi3", "Gemma2", "Cohere"])
def test_pieces_are_what_the_whole_is(family: str) -> None:
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    sizes |= {"num_key_value_heads": 2, "head_dim": 8} if family == "Gemma2" else {}
    sizes |= {"ffn_dim": 32, "word_embed_proj_dim": 12} if family == "OPT" else {"intermediate_size": 32}
    config = getattr(transformers, f"{family}Config")(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    tokens, targets = torch.randint(0, 20, (2, 9)), torch.randint(0, 20, (2, 9, 3))
    found = []
    for most in (18, 4):
        model.zero_grad()
        logprobs = target_logprobs(model, tokens, targets, most)
        logprobs.square().sum().backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        found.append((logprobs.detach(), torch.cat(gradients)))
    (whole, gradient), (pieces, gradient_of_pieces) = found
    torch.testing.assert_close(pieces, whole)
    torch.testing.assert_close(gradient_of_pieces, gradient, atol=1e-4, rtol=1e-4)
