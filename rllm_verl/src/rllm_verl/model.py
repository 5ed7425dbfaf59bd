"""A run's starting model: `tiny`, a Hugging Face directory, a run's checkpoint, or a hub id."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rllm_backend_kit.model_files import generation_stop_ids, is_only_cached, longest_context, model_directory, stop_ids
from rllm_backend_kit.renderers import options_without_thinking
from rllm_core.contracts.renderer import RendererSetup
from rllm_core.errors import ConfigError
from rllm_verl.adapters import Adapter, find_adapter
from rllm_verl.keys import MODEL_PATH, TINY
from rllm_verl.state import fetch_model, has_only_shards, model_digest


@dataclass(frozen=True)
class Model:
    """A model's properties in the driver. The workers load its weights."""

    name: str
    """`tiny`, an absolute path, or a hub id. For an adapter, its base model."""
    seed: int
    """Seed for the weights of `tiny`."""
    path: str
    """The directory or hub id that verl receives."""
    digest: str
    """The model's digest, see `rllm_verl.state.model_digest`."""
    max_context: int
    """Maximum number of tokens that the model's positions allow."""
    rendering: RendererSetup
    type: str
    """``model_type`` in the model's configuration."""
    layer_types: list[str]
    """Layer types of the text model, by layer. Empty if its configuration has none."""
    vocabulary: int
    layers: int
    """Number of layers of the text model."""
    softcap: float | None
    """The model's cap on logits. None if it has none."""
    adapter: Adapter | None = None
    """The adapter, if the run starts from one. The other fields then describe its base model."""


def digest_of(name: str) -> str | None:
    """Return `Model.digest` for a model name. None for `tiny` and its adapters, whose weights depend on a seed."""
    if name == TINY:
        return None
    path = Path(name).expanduser()
    found = model_directory(path)
    if found is None and (adapter := find_adapter(path)) is not None:
        below = digest_of(adapter.base)
        return None if below is None else adapter.digest_over(below)
    return model_digest(found) if found is not None else hashlib.sha256(name.encode()).hexdigest()


def lora_rank_of(name: str, chosen: int) -> int:
    """Return the run's LoRA rank. An adapter keeps its own rank, so `chosen` applies only to other models."""
    adapter = None if name == TINY else find_adapter(Path(name).expanduser())
    return chosen if adapter is None else adapter.rank


def open_model(name: str, *, seed: int, directory: Path, without_thinking: bool) -> Model:
    """Read a model's files except its weights.

    Args:
        name: value of ``actor_rollout_ref.model.path``.
        seed: seed for the weights of `tiny`.
        directory: an empty directory. It receives models that have no files yet but that other processes must load:
            `tiny`, or the joined model of a checkpoint with shards.
        without_thinking: True if the chat template must switch off thinking.

    Raises:
        ConfigError: the model does not exist or has no chat template.
    """
    if name == TINY:
        _write_tiny(directory, seed)
        return replace(
            _read_model(directory, TINY, str(directory), model_digest(directory), without_thinking), seed=seed
        )
    path = Path(name).expanduser()
    adapter = find_adapter(path)
    if adapter is not None:
        below = open_model(adapter.base, seed=adapter.seed, directory=directory, without_thinking=without_thinking)
        return replace(below, digest=adapter.digest_over(below.digest), adapter=adapter)
    if has_only_shards(path):
        fetched = directory / "fetched"
        fetched.mkdir()
        fetch_model(path / "backend", fetched)
        return open_model(str(fetched), seed=seed, directory=directory, without_thinking=without_thinking)
    digest = digest_of(name)
    assert digest is not None
    found = model_directory(path)
    if found is not None:
        return open_directory(found, digest=digest, without_thinking=without_thinking)
    return _read_model(name, name, name, digest, without_thinking)


def open_directory(directory: Path, *, digest: str, without_thinking: bool) -> Model:
    """Read the files of a Hugging Face directory except its weights. `open_model` has the arguments and errors."""
    path = str(directory.resolve())
    return _read_model(directory, path, path, digest, without_thinking)


def _read_model(source: Path | str, name: str, path: str, digest: str, without_thinking: bool) -> Model:
    from transformers import AutoConfig, AutoTokenizer

    try:
        cached = is_only_cached(source)
        config = AutoConfig.from_pretrained(source, local_files_only=cached)
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=cached)
    except (OSError, ValueError, KeyError, ImportError) as error:
        why = " ".join(str(error).split())[:300].rstrip(".")
        raise ConfigError(
            "model-not-loadable",
            f"{MODEL_PATH}={path!r} cannot be loaded: {why}.",
            "Use a directory saved by Hugging Face transformers, a run's checkpoint, a hub id, or `tiny`.",
        ) from error
    if tokenizer.chat_template is None:
        raise ConfigError(
            "no-chat-template",
            f"{MODEL_PATH}={path!r}: its tokenizer has no chat template.",
            "Use a chat or instruct model, or set chat_template in its tokenizer_config.json.",
        )
    options: dict[str, Any] = options_without_thinking(tokenizer) if without_thinking else {}
    text = config.get_text_config()
    return Model(
        name=name,
        seed=0,
        path=path,
        digest=digest,
        max_context=longest_context(text, tokenizer.model_max_length),
        rendering=RendererSetup(
            name=path,
            tokenizer=tokenizer,
            stop_ids=stop_ids(tokenizer, generation_stop_ids(source)),
            template_options=options,
        ),
        type=config.model_type,
        layer_types=list(getattr(text, "layer_types", None) or ()),
        vocabulary=int(text.vocab_size),
        layers=int(text.num_hidden_layers),
        softcap=getattr(text, "final_logit_softcapping", None),
    )


def _write_tiny(directory: Path, seed: int) -> None:
    try:
        from rllm_local import tiny
    except ImportError as error:
        raise ConfigError(
            "missing-package",
            "The model `tiny` needs rllm-local, which is not installed.",
            "pip install 'rllm-verl[cpu]'",
        ) from error
    tokenizer = tiny.build_tokenizer()
    tiny.build_model(len(tokenizer), seed).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
