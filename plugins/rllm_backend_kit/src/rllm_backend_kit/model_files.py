"""Read a model's files for all backends: its directory, stop tokens and longest context, also without network."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rllm_core.errors import ConfigError

HUB_DEADLINE = 8.0
"""Seconds until the hub counts as out of reach."""
HUB_RETRY_AFTER = 60.0
"""Seconds in which it is not asked again: a run opens tokenizer and model one after the other."""
_unanswered: dict[str, float] = {}
"""When the hub did not answer about a name, by `time.monotonic`."""


def is_only_cached(source: Path | str) -> bool:
    """True if a model can only come from the hub's cache: it is a hub id, and the hub does not answer.

    Pass the result to `from_pretrained` of transformers as `local_files_only`.

    Args:
        source: a directory, or a hub id.
    """
    name = str(source)
    if Path(source).is_dir():
        return False
    if time.monotonic() - _unanswered.get(name, -math.inf) < HUB_RETRY_AFTER:
        return True
    if _answers(name):
        return False
    _unanswered[name] = time.monotonic()
    return True


def _answers(name: str) -> bool:
    # Imported before the thread starts: a second import of a module that is still being imported fails.
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if constants.HF_HUB_OFFLINE:
        return False
    answered = threading.Event()

    def ask() -> None:
        try:
            HfApi().model_info(name, timeout=HUB_DEADLINE)
        except (HfHubHTTPError, HFValidationError):
            answered.set()  # transformers explains what is wrong with the name
        except Exception:  # noqa: BLE001  (of requests or httpx, by the version of the client)
            return
        else:
            answered.set()

    # A look-up of a host name has no deadline that Python could set, so the thread may outlive this call.
    asking = threading.Thread(target=ask, name="rllm-hub", daemon=True)
    asking.start()
    asking.join(HUB_DEADLINE)
    return answered.is_set()


_HUB_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", re.ASCII)
_LONGEST_HUB_ID = 96
"""Characters, as the Hugging Face hub counts them."""


def path_or_hub_id(key: str, name: str) -> Path | None:
    """Return the path that a model's name means; None if the name is a hub id.

    Args:
        key: the config key that has this value, for the message.
        name: a path that exists, a name that begins like a path, or a hub id.

    Raises:
        ConfigError: the name is neither a path nor a hub id, so that the hub need not be asked about it.
    """
    shown = name if len(name) <= _LONGEST_HUB_ID else f"{name[:_LONGEST_HUB_ID]}…"
    try:
        path = Path(name).expanduser()
        exists = bool(name) and path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, `~name` of an unknown user
        why = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise ConfigError(
            "model-not-found", f"{key}={shown!r}: {why}.", "Name a directory on this machine, or a hub id."
        ) from error
    if exists or name.startswith((".", "/", "~")) or name.count("/") > 1:
        return path
    if not _HUB_ID.fullmatch(name) or len(name) > _LONGEST_HUB_ID:
        raise ConfigError(
            "model-not-found",
            f"{key}={shown!r} is neither a directory on this machine nor a hub id.",
            "Use `tiny`, a directory saved by Hugging Face transformers, a run's checkpoint, or a hub id such as "
            "Qwen/Qwen3-0.6B.",
        )
    return None


def model_directory(path: Path) -> Path | None:
    """The Hugging Face directory meant by `path`: itself, or the model inside a run's checkpoint; None when neither."""
    for directory in (path, path / "backend" / "model"):
        if (directory / "config.json").is_file():
            return directory
    return None


def stop_ids(tokenizer: Any, of_generation: int | Sequence[int] | None) -> frozenset[int]:
    """Tokens that end a response: the tokenizer's, and those that the model's generation settings add.

    Args:
        tokenizer: a Hugging Face tokenizer.
        of_generation: ``eos_token_id`` of the model's `GenerationConfig`; None where it has none.
    """
    also = [of_generation] if isinstance(of_generation, int) else of_generation or []
    return frozenset(int(token) for token in (tokenizer.eos_token_id, *also) if token is not None)


def generation_stop_ids(source: Path | str, *, local_files_only: bool = False) -> int | Sequence[int] | None:
    """Return the stop tokens in a model's generation settings, for `stop_ids`. None if it has no such settings."""
    from transformers import GenerationConfig

    try:
        found: int | Sequence[int] | None = GenerationConfig.from_pretrained(
            source, local_files_only=local_files_only or is_only_cached(source)
        ).eos_token_id
    except (OSError, ValueError):
        return None  # many models are saved without generation settings
    return found


def silence_transformers() -> None:
    """Switch off progress bars and warnings of transformers, because they interrupt rllm's own lines."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def check_vocabulary(name: str, tokenizer: Any, stops: frozenset[int], rows: int) -> None:
    """Check that a model has an embedding for every token of its tokenizer.

    This ignores added tokens, because image tokens are beyond the embedding rows of text models.

    Args:
        name: the model's name, for the message.
        tokenizer: a Hugging Face tokenizer.
        stops: stop tokens.
        rows: number of rows of the model's embedding.

    Raises:
        ConfigError: the tokenizer has more tokens than the embedding has rows, so some text would stop the run.
    """
    largest = max(tokenizer.vocab_size - 1, *stops)
    if largest >= rows:
        raise ConfigError(
            "tokenizer-mismatch",
            f"model.name={name!r}: its tokenizer has tokens up to {largest}, but the vocabulary of its weights ends at "
            f"{rows - 1}.",
            "Tokenizer and weights belong to different models: save or download them together.",
        )


def longest_context(config: Any, default: int) -> int:
    """Return the maximum number of tokens in a row whose values do not depend on other rows.

    The scale of `dynamic` rope changes only beyond `max_position_embeddings`, so it needs no separate limit. It then
    changes for all rows of the pass, and stays changed for later passes.

    Args:
        config: the config of the text model.
        default: the maximum for models without `max_position_embeddings`.
    """
    longest = int(getattr(config, "max_position_embeddings", 0) or default)
    return min(longest, longrope_limit(config) or longest)


def longrope_limit(config: Any) -> int | None:
    """Return the length from which longrope uses its long factors, None for models without longrope.

    transformers switches all tokens of a pass when the longest row of the pass exceeds the length. Cached keys keep
    their old angles, so log-probs beyond the length would depend on other rows and on the cache.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    # Some models have rope parameters for each layer type.
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    limits = [part["original_max_position_embeddings"] for part in parts if part.get("rope_type") == "longrope"]
    return min(map(int, limits)) if limits else None
