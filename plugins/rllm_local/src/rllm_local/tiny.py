"""The model `tiny`: a two-layer Llama and its tokenizer. Both are created in code, so nothing is downloaded."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<pad>", "<unk>", "<end>", "<system>")
WORDS = ("lower", "higher", "correct", "number", "guess", "plus", "is")
CHARACTERS = string.ascii_lowercase + " .,?!:+-=\n"
LARGEST_WHOLE_NUMBER = 31

# User messages have no markers, and assistant messages end with <end>. So a turn costs as few tokens as possible, and
# the response directly follows the user's message. Measured: training on the game `guess` takes 40% less time than with
# a marker before each message.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'assistant' -%}{{ message.content }}<end>"
    "{%- elif message.role == 'system' -%}<system>{{ message.content }}<end>"
    "{%- else -%}{{ message.content }}{%- endif -%}"
    "{%- endfor -%}"
)
INITIALIZER_RANGE = 0.12
"""About 1 / sqrt(width). Llama's usual 0.02 is for widths in the thousands. With it, learning starts late."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with whole numbers 0 to 31, a few words, and single characters for all other text.

    Lower-case text made of letters, digits, spaces and ``.,?!:+-=`` survives encoding and decoding unchanged.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    numbers = tuple(str(number) for number in range(LARGEST_WHOLE_NUMBER + 1))
    vocabulary = {token: index for index, token in enumerate(SPECIAL_TOKENS + numbers + WORDS + tuple(CHARACTERS))}
    # Sequences of letters are split after 16, because the time to find the longest match is quadratic in their length.
    # WordPiece without a continuation prefix is greedy longest match: whole words if possible, else characters.
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>", continuing_subword_prefix=""))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[0-9]{1,16}|[a-z]{1,16}|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<end>",
        additional_special_tokens=["<system>"],
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def build_model(vocabulary_size: int, seed: int) -> LlamaForCausalLM:
    """Return a randomly initialized Llama with about 90,000 parameters. The same `seed` gives the same weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=INITIALIZER_RANGE,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index("<end>"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def build_classifier(vocabulary_size: int, seed: int) -> LlamaForSequenceClassification:
    """Return the model of `build_model` with one output instead of its output layer. Its head has random weights."""
    import torch
    from transformers import LlamaForSequenceClassification

    model = build_model(vocabulary_size, seed)
    model.config.num_labels = 1
    with torch.random.fork_rng(devices=[]):
        classifier = LlamaForSequenceClassification(model.config)
    classifier.model.load_state_dict(model.model.state_dict())
    return classifier
