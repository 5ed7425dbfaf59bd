"""Make the grammars of vLLM's model from the tokenizer in its directory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rllm_backend_kit.grammars import Grammars


@dataclass(frozen=True)
class Marks:
    """Token ids that end responses, and token ids that start and end reasoning."""

    stop_ids: tuple[int, ...]
    reasoning_ids: tuple[int, int] | None


def load_grammars(model_config: Any, marks: Marks) -> Grammars:
    """Return the grammars of a model. The directory of its tokenizer is not needed later.

    Args:
        model_config: vLLM's ``ModelConfig``.
        marks: the renderer's tokens.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_config.tokenizer)
    return Grammars(tokenizer, model_config.get_vocab_size(), marks)
