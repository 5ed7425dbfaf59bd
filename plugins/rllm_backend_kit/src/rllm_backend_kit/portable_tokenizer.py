"""A model's tokenizer for a process that only renders: `tokenizers` and the chat template, without torch.

The import of `transformers` takes 200 MB and seconds of CPU, because it imports torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllm_backend_kit.chat_template import compiled_template

FILE = "tokenizer.json"
METHODS = (
    "__call__",
    "_convert_token_to_id_with_added_voc",
    "_decode",
    "_encode_plus",
    "apply_chat_template",
    "convert_tokens_to_ids",
    "decode",
    "encode",
    "get_chat_template",
    "get_vocab",
    "set_truncation_and_padding",
    "special_tokens_map",
)
"""Attributes of a fast tokenizer that `PortableTokenizer` has too. Some classes replace one of them."""
SPACED = "a . b ? c ! d , e ' f n't g 'm h 's i 've j 're k"
"""Text that a tokenizer with clean-up of spaces does not decode to itself."""
OTHER_OPTIONS = frozenset(
    {
        "chat_template",
        "continue_final_message",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenizer_kwargs",
        "truncation",
    }
)
"""Options of `apply_chat_template` that are not variables of the template. They are left to `transformers`."""


def portable_form(tokenizer: Any) -> dict[str, Any] | None:
    """Return the settings that `PortableTokenizer` needs next to the saved ``tokenizer.json``, as JSON data.

    Returns:
        None if only `transformers` can compute this tokenizer's ids: a slow tokenizer, or a class with its own methods.
    """
    from transformers import PreTrainedTokenizerFast as Fast

    if not isinstance(tokenizer, Fast):
        return None
    if any(getattr(type(tokenizer), name, None) is not getattr(Fast, name, None) for name in METHODS):
        return None
    ids = tokenizer.encode(SPACED, add_special_tokens=False)
    if tokenizer.decode(ids) != tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False):
        return None
    return {
        "name_or_path": tokenizer.name_or_path,
        "chat_template": tokenizer.chat_template,
        "special_tokens": dict(tokenizer.special_tokens_map),
        "split_special_tokens": bool(tokenizer.split_special_tokens),
    }


class PortableTokenizer:
    """The part of a Hugging Face tokenizer that renderers use. It loads the rest with `transformers` on first use."""

    def __init__(self, directory: Path, form: Mapping[str, Any]) -> None:
        """Load a tokenizer.

        Args:
            directory: a directory that `save_pretrained` wrote.
            form: the settings from `portable_form`.
        """
        from tokenizers import Tokenizer

        self._directory = directory
        self._backend = Tokenizer.from_file(str(directory / FILE))
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = form["split_special_tokens"]
        self._special_tokens: Mapping[str, str] = form["special_tokens"]
        self._loaded: Any = None
        self.name_or_path: str = form["name_or_path"]
        self.chat_template: str | dict[str, str] | None = form["chat_template"]
        self.unk_token_id = self._special_id("unk_token")
        self.bos_token_id = self._special_id("bos_token")
        self.eos_token_id = self._special_id("eos_token")

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = None,
        documents: Any = None,
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **options: Any,
    ) -> Any:
        """Render a conversation as text. See `transformers` for the arguments."""
        template = self.chat_template
        if isinstance(template, dict):
            template = template.get("tool_use" if tools is not None and "tool_use" in template else "default")
        if tokenize or options.keys() & OTHER_OPTIONS or template is None:
            return self._full.apply_chat_template(
                conversation,
                tools,
                documents,
                add_generation_prompt=add_generation_prompt,
                tokenize=tokenize,
                **options,
            )
        return compiled_template(template).render(
            messages=conversation,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
            **{**self._special_tokens, **options},
        )

    def encode(self, text: str, *, add_special_tokens: bool = True, **options: Any) -> list[int]:
        """Return the ids of a text."""
        if options:
            return list(self._full.encode(text, add_special_tokens=add_special_tokens, **options))
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """Return the text of a sequence of ids."""
        if options or not isinstance(token_ids, list):
            return self._full.decode(token_ids, skip_special_tokens=skip_special_tokens, **options)
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Return the id of a token, or the ids of a list of tokens. Unknown tokens get `unk_token_id`."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        found = self._backend.token_to_id(tokens)
        return self.unk_token_id if found is None else found

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """The tokens that were added to the vocabulary, by id. They have fields such as `content` and `special`."""
        return dict(self._backend.get_added_tokens_decoder())

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token, added tokens included."""
        return dict(self._backend.get_vocab(with_added_tokens=True))

    def __call__(self, text: Any, *, add_special_tokens: bool = True, **options: Any) -> Any:
        """Return ids and, for ``return_offsets_mapping``, each token's characters. `transformers` does the rest."""
        if not isinstance(text, str) or options != {"return_offsets_mapping": True}:
            return self._full(text, add_special_tokens=add_special_tokens, **options)
        encoded = self._backend.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "offset_mapping": encoded.offsets}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._full, name)

    @property
    def _full(self) -> Any:
        if self._loaded is None:
            self._loaded = full_tokenizer(self._directory)
        return self._loaded

    def _special_id(self, name: str) -> int | None:
        token = self._special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)


def full_tokenizer(directory: Path) -> Any:
    """Load a saved tokenizer with `transformers`, which imports torch."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def return_free_memory() -> None:
    """Give memory that was read and freed back to the system. A file with 150,000 tokens leaves 40 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in the C library of GNU
    if trim is not None:
        trim(0)
