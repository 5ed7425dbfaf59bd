"""The model that a run starts with: `tiny`, a Hugging Face folder, a checkpoint of a run, or a hub id."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rllm_backend_kit.hub import only_cached
from rllm_backend_kit.model_files import model_directory, stop_ids
from rllm_backend_kit.renderers import options_without_thinking
from rllm_core.contracts.renderer import RendererSetup
from rllm_core.errors import ConfigError
from rllm_verl.adapters import Adapter, find_adapter
from rllm_verl.fetching import fetch_model, holds_parts
from rllm_verl.state import model_digest

TINY = "tiny"
MODEL_KEY = "actor_rollout_ref.model.path"


@dataclass(frozen=True)
class Model:
    """What the driver knows of a model; its weights are loaded by the workers."""

    name: str
    """`tiny`, an absolute path, or a hub id; below an adapter."""
    seed: int
    """Of the weights of `tiny`."""
    path: str
    """What verl is given: a folder, or a hub id."""
    digest: str
    """See `rllm_verl.state.model_digest`."""
    max_context: int
    """Most tokens that its positions allow."""
    rendering: RendererSetup
    type: str
    """``model_type`` of its configuration."""
    layer_types: list[str]
    """Of its text part, by layer; empty where its configuration does not say."""
    vocabulary: int
    softcap: float | None
    """Bound on its logits; None where it has none."""
    adapter: Adapter | None = None
    """What is named is this adapter, and all else the model below it."""


def digest_of(name: str) -> str | None:
    """`Model.digest` of what a name stands for; None for `tiny`, whose weights follow from a seed, and above it."""
    if name == TINY:
        return None
    path = Path(name).expanduser()
    found = model_directory(path)
    if found is None and (adapter := find_adapter(path)) is not None:
        below = digest_of(adapter.base)
        return None if below is None else adapter.digest_over(below)
    return model_digest(found) if found is not None else hashlib.sha256(name.encode()).hexdigest()


def lora_rank_of(name: str, chosen: int) -> int:
    """The rank that a run has: an adapter keeps its own, whatever is chosen."""
    adapter = None if name == TINY else find_adapter(Path(name).expanduser())
    return chosen if adapter is None else adapter.rank


def open_model(name: str, *, seed: int, directory: Path, without_thinking: bool) -> Model:
    """Read all of a model but its weights.

    Args:
        name: value of ``actor_rollout_ref.model.path``.
        seed: of the weights of `tiny`.
        folder: empty; takes what other processes load and no file holds: `tiny`, the model of a checkpoint in parts.
        without_thinking: whether the chat template is to leave thoughts out.

    Raises:
        ConfigError: there is no such model, or no chat template.
    """
    if name == TINY:
        _write_tiny(directory, seed)
        return replace(_opened(directory, TINY, str(directory), model_digest(directory), without_thinking), seed=seed)
    path = Path(name).expanduser()
    adapter = find_adapter(path)
    if adapter is not None:
        below = open_model(adapter.base, seed=adapter.seed, directory=directory, without_thinking=without_thinking)
        return replace(below, digest=adapter.digest_over(below.digest), adapter=adapter)
    if holds_parts(path):
        fetched = directory / "fetched"
        fetched.mkdir()
        fetch_model(path / "backend", fetched)
        return open_model(str(fetched), seed=seed, directory=directory, without_thinking=without_thinking)
    digest = digest_of(name)
    assert digest is not None
    found = model_directory(path)
    if found is not None:
        return _opened(found, str(found.resolve()), str(found.resolve()), digest, without_thinking)
    return _opened(name, name, name, digest, without_thinking)


def _opened(source: Path | str, name: str, path: str, digest: str, without_thinking: bool) -> Model:
    from transformers import AutoConfig, AutoTokenizer

    try:
        cached = only_cached(source)
        config = AutoConfig.from_pretrained(source, local_files_only=cached)
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=cached)
    except (OSError, ValueError, KeyError, ImportError) as error:
        why = " ".join(str(error).split())[:300].rstrip(".")
        raise ConfigError(
            "model-not-loadable",
            f"{MODEL_KEY}={path!r} cannot be loaded: {why}.",
            "Use a folder saved by Hugging Face transformers, a run's checkpoint, a hub id, or `tiny`.",
        ) from error
    if tokenizer.chat_template is None:
        raise ConfigError(
            "no-chat-template",
            f"{MODEL_KEY}={path!r}: its tokenizer has no chat template.",
            "Use a chat or instruct model, or set chat_template in its tokenizer_config.json.",
        )
    options: dict[str, Any] = options_without_thinking(tokenizer) if without_thinking else {}
    text = config.get_text_config()
    return Model(
        name=name,
        seed=0,
        path=path,
        digest=digest,
        max_context=int(getattr(text, "max_position_embeddings", 0) or tokenizer.model_max_length),
        rendering=RendererSetup(
            name=path,
            tokenizer=tokenizer,
            stop_ids=frozenset(stop_ids(tokenizer, _stops_of_generation(source))),
            template_options=options,
        ),
        type=config.model_type,
        layer_types=list(getattr(text, "layer_types", None) or ()),
        vocabulary=int(text.vocab_size),
        softcap=getattr(text, "final_logit_softcapping", None),
    )


def _stops_of_generation(source: Path | str) -> Any:
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(source, local_files_only=only_cached(source)).eos_token_id
    except (OSError, ValueError):
        return None  # many models are saved without


def _write_tiny(directory: Path, seed: int) -> None:
    try:
        from rllm_local import tiny
    except ImportError as error:
        raise ConfigError(
            "missing-package",
            "The model `tiny` is made by rllm-local, which is not installed.",
            "pip install 'rllm-verl[cpu]'",
        ) from error
    tokenizer = tiny.build_tokenizer()
    tiny.build_model(len(tokenizer), seed).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
