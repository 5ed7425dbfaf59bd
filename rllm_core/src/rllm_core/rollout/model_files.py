"""What every backend looks for in a model's files: the folder that is meant, and the tokens that end a reply."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


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
