"""What every backend looks for in a model's files: the folder that is meant, and the tokens that end a reply."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rllm_core.errors import ConfigError


def model_folder(path: Path) -> Path | None:
    """The Hugging Face folder meant by `path`: itself, or the model inside a run's checkpoint; None when neither."""
    for folder in (path, path / "backend" / "model"):
        if (folder / "config.json").is_file():
            return folder
    return None


def stop_ids(tokenizer: Any, of_generation: int | Sequence[int] | None) -> frozenset[int]:
    """Tokens that end a reply: the tokenizer's, and those that the model's generation settings add.

    Args:
        tokenizer: a Hugging Face tokenizer.
        of_generation: ``eos_token_id`` of the model's `GenerationConfig`; None where it has none.
    """
    also = [of_generation] if isinstance(of_generation, int) else of_generation or []
    return frozenset(int(token) for token in (tokenizer.eos_token_id, *also) if token is not None)


def check_vocabulary(name: str, tokenizer: Any, stops: frozenset[int], rows: int) -> None:
    """Whether a model has an embedding for what its tokenizer gives.

    Tokens that were added to a tokenizer are not looked at: those of pictures lie beyond the rows of text models.

    Args:
        name: of the model, for the message.
        tokenizer: a Hugging Face tokenizer.
        stops: tokens that end a reply.
        rows: of the model's embedding.

    Raises:
        ConfigError: there are more tokens than rows, so that some text would end the run.
    """
    largest = max(tokenizer.vocab_size - 1, *stops)
    if largest >= rows:
        raise ConfigError(
            f"model.name={name!r}: its tokenizer has tokens up to {largest}, and the vocabulary of its weights ends at "
            f"{rows - 1}.",
            "Tokenizer and weights are of two models: save or download them together.",
        )
