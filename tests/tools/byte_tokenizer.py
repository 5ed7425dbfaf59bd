"""A tokenizer of bytes, made in code: it can write any text, and therefore JSON."""

from __future__ import annotations

from typing import Any

END = 0
THINK = (1, 2)
"""``<think>`` and ``</think>``."""
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% if message.role == 'assistant' %}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer() -> Any:
    """Return a Hugging Face tokenizer with one token for each byte, an end token and tokens around reasoning."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<end>", "<think>", "</think>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(each, special=False) for each in names[1:3]])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", clean_up_tokenization_spaces=False, model_max_length=4096
    )
    wrapped.chat_template = TEMPLATE
    return wrapped
