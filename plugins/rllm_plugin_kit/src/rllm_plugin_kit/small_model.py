"""The model that engines are tested with: a Llama of two layers with random weights, and a tokenizer of characters."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.engine import SamplingParams
from rllm_core.rollout.template_renderer import TemplateRenderer

if TYPE_CHECKING:
    from torch import Tensor

SPECIAL = ("<pad>", "<unk>", "<end>")
STOP_ID = SPECIAL.index("<end>")
CHARACTERS = string.ascii_lowercase + string.digits + " .,?!:+-=\n"
TEMPLATE = "{%- for message in messages -%}{{ message.content }}<end>{%- endfor -%}"
MAX_CONTEXT = 256


class SmallModel:
    """Computes with transformers, without a cache: what engines are compared with."""

    def __init__(self, seed: int) -> None:
        import torch
        from transformers import LlamaForCausalLM

        make: Any = LlamaForCausalLM
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._model = make(_config()).eval()

    def weights(self) -> dict[str, Tensor]:
        """A copy of each, by its name in a checkpoint; the head is tied to the embedding, which is there once."""
        named = self._model.named_parameters()
        return {name: parameter.detach().clone() for name, parameter in named}

    def logits(self, prompt: Sequence[int], response: Sequence[int]) -> NDArray[np.float64]:
        """(len(response), vocabulary) before each token of the response."""
        import torch

        with torch.inference_mode():
            logits = self._model(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0]
        found: NDArray[np.float64] = logits[len(prompt) - 1 : -1].double().numpy()
        return found

    def logprobs(self, prompt: Sequence[int], response: Sequence[int], sampling: SamplingParams) -> NDArray[np.float64]:
        """(len(response),) under softmax(logits / temperature), before truncation."""
        scaled = self.logits(prompt, response) / (sampling.temperature or 1.0)
        scaled -= scaled.max(axis=1, keepdims=True)
        all_of_them = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        chosen: NDArray[np.float64] = all_of_them[np.arange(len(response)), np.asarray(response, int)]
        return chosen


def make_renderer() -> TemplateRenderer:
    """Make a renderer with `SmallModel`'s tokenizer."""
    return TemplateRenderer(make_tokenizer(), {STOP_ID})


def save_without_weights(directory: Path) -> None:
    """Write configuration and tokenizer, as a backend writes them for its engine."""
    config = _config()
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)


def _config() -> Any:
    from transformers import LlamaConfig

    # The smallest heads that the CPU kernels of engines know.
    return LlamaConfig(
        vocab_size=len(SPECIAL) + len(CHARACTERS),
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
        eos_token_id=STOP_ID,
    )


def make_tokenizer() -> Any:
    """A Hugging Face tokenizer with one token per character, and a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    make: Any = PreTrainedTokenizerFast
    wrapped = make(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<end>",
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_CONTEXT,
    )
    wrapped.chat_template = TEMPLATE
    return wrapped
