"""Loading: `tiny`, a Hugging Face folder, a LoRA adapter, a checkpoint of a run, or a hub id."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from rllm_backend_kit.hub import only_cached
from rllm_backend_kit.model_files import check_vocabulary, stop_ids
from rllm_core.errors import ConfigError
from rllm_local.adapter_files import BaseModel, adapter_directory, read_base
from rllm_local.family_check import check_family
from rllm_local.fingerprints import fingerprint
from rllm_local.lora import Adapter, merge_into
from rllm_local.masters import Masters, cast_weights
from rllm_local.model_name import TINY, directory_of, how_to_name_a_model
from rllm_local.settings import ModelSection, TrainedModelSection


def longest_context(config: Any, default: int) -> int:
    """Return the most tokens of a row. `default` is for models without `max_position_embeddings`.

    The scale of `dynamic` rope changes beyond `max_position_embeddings` only, so it needs no separate limit.
    """
    longest = int(getattr(config, "max_position_embeddings", 0) or default)
    return min(longest, longrope_limit(config) or longest)


def longrope_limit(config: Any) -> int | None:
    """Return the length from which longrope uses its long factors, None for models without longrope.

    transformers switches all tokens of a pass when the longest row of the pass exceeds the length. Cached keys keep
    their old angles, so log-probs beyond the length would depend on other rows and on the cache.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    # Some models have rope parameters per type of layer.
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    limits = [part["original_max_position_embeddings"] for part in parts if part.get("rope_type") == "longrope"]
    return min(map(int, limits)) if limits else None


def check_max_length(name: str, max_length: int, rope_changes_beyond: int | None) -> None:
    """Raise ConfigError if conversations may become longer than longrope computes exactly."""
    if rope_changes_beyond is not None and max_length > rope_changes_beyond:
        raise ConfigError(
            "context-too-long",
            f"training.max_length={max_length}, and model.name={name!r} has longrope: beyond {rope_changes_beyond} "
            "tokens it rotates all tokens by other angles, so log-probs depend on the cache and on other rows.",
            f"Set training.max_length={rope_changes_beyond} or lower.",
        )


def find_device(name: str) -> torch.device:
    """The device of a name; `auto` is CUDA where there is one.

    Raises:
        ConfigError: there is none of that name, or it cannot be used.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "no-gpu", f"model.device={name!r}, and torch finds no CUDA device.", "Use model.device=auto or =cpu."
        )
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            "bad-value", f"model.device={name!r} cannot be used: {error}.", "Use auto, cpu or cuda."
        ) from error
    return device


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A causal language model with its tokenizer."""

    model: Any
    """`transformers.PreTrainedModel`, in evaluation mode on its device."""
    tokenizer: Any
    stop_ids: frozenset[int]
    """Tokens that end a reply."""
    max_context: int
    """Most tokens of a row that the model computes exactly."""
    rope_changes_beyond: int | None = None
    """Length from which longrope rotates all tokens of a row by other angles, None for other models."""
    adapter: Adapter | None = None
    """What is trained, where it is not all of the model."""
    continues_adapter: bool = False
    """Whether the adapter was trained before, so that the model without it is not the one that was asked for."""


def load_model(settings: ModelSection, seed: int) -> LoadedModel:
    """Load model and tokenizer by name, to compute with. `seed` is used by `tiny` alone.

    Raises:
        ConfigError: no such folder, a folder without a model, a model that cannot be sampled from here.
    """
    loaded = _load_float32(settings.name, seed)
    cast_weights(loaded.model, getattr(torch, settings.dtype))
    loaded.model.to(find_device(settings.device))
    return loaded


def load_model_to_train(settings: TrainedModelSection, seed: int) -> tuple[LoadedModel, Masters]:
    """As `load_model`; what is trained is float32: all weights as the files have them, or a LoRA adapter.

    Raises:
        ConfigError: as `load_model`; or the adapter that is named has another shape than the one that is asked for.
    """
    if settings.lora_rank:
        loaded = _load_with_adapter(settings, seed)
        return loaded, Masters(loaded.model)
    loaded = _load_float32(settings.name, seed)
    loaded.model.to(find_device(settings.device))
    return loaded, Masters.of_float32(loaded.model, getattr(torch, settings.dtype))


def load_model_to_sample(settings: TrainedModelSection, seed: int) -> LoadedModel:
    """The model of `load_model_to_train`, where another process trains it. Raises ConfigError: as that."""
    return _load_with_adapter(settings, seed) if settings.lora_rank else load_model(settings, seed)


def _load_with_adapter(settings: TrainedModelSection, seed: int) -> LoadedModel:
    trained_before = adapter_directory(settings.name)
    if trained_before is None:
        directory = directory_of(settings.name) if settings.name != TINY else None
        base = BaseModel(str(directory.resolve()) if directory else settings.name, seed)
        loaded = _load_float32(settings.name, seed)
    else:
        base = read_base(trained_before)
        loaded = _load_below(trained_before)
    model = loaded.model
    cast_weights(model, getattr(torch, settings.dtype))
    model.to(find_device(settings.device))
    adapter = Adapter(model, settings, base, seed)
    if trained_before is not None:
        try:
            adapter.load(trained_before)
        except ValueError as error:
            raise ConfigError(
                "adapter-mismatch",
                f"model.name={settings.name!r} is a LoRA adapter of another shape than model.lora_rank, lora_alpha and "
                f"lora_target_modules say: {error}.",
                "Set these keys to those of its adapter_config.json, or set model.lora_rank=0 to train all weights.",
            ) from error
    return replace(loaded, adapter=adapter, continues_adapter=trained_before is not None)


def _load_below(directory: Path) -> LoadedModel:
    """The model that the adapter in `directory` was trained on, float32."""
    base = read_base(directory)
    which = f"model.name={str(directory)!r} is a LoRA adapter of the model {base.name!r}"
    hint = "Put that model back, or set base_model_name_or_path in the adapter_config.json to where it is now."
    try:
        loaded = _load_float32(base.name, base.seed)
    except ConfigError as error:
        raise ConfigError(error.code, f"{which}. {error.message}", hint) from error
    known = base.sha256 is not None and base.dtype is not None
    if known and fingerprint(loaded.model, getattr(torch, str(base.dtype))) != base.sha256:
        raise ConfigError(
            "adapter-base-changed", f"{which}, which has other weights now than those it was trained on.", hint
        )
    return loaded


def _load_float32(name: str, seed: int) -> LoadedModel:
    _quiet()
    adapter = adapter_directory(name)
    if adapter is not None:
        below = _load_below(adapter)
        return replace(below, model=merge_into(below.model, adapter))
    if name == TINY:
        from rllm_local import tiny

        tokenizer = tiny.build_tokenizer()
        model: Any = tiny.build_model(len(tokenizer), seed)
    else:
        model, tokenizer = _from_pretrained(name)
    if tokenizer.chat_template is None:
        raise ConfigError(
            "no-chat-template",
            f"model.name={name!r}: its tokenizer has no chat template.",
            "Use a chat or instruct model, or set chat_template in its tokenizer_config.json.",
        )
    check_family(model, name)
    stops = stop_ids(tokenizer, getattr(model.generation_config, "eos_token_id", None))
    check_vocabulary(name, tokenizer, stops, model.get_input_embeddings().num_embeddings)
    return LoadedModel(
        model=model.eval(),
        tokenizer=tokenizer,
        stop_ids=stops,
        max_context=longest_context(model.config.get_text_config(), tokenizer.model_max_length),
        rope_changes_beyond=longrope_limit(model.config.get_text_config()),
    )


def _from_pretrained(name: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = directory_of(name) or name
    try:
        cached = only_cached(source)
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=cached)
        model, found = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            local_files_only=cached,
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        why = " ".join(str(error).split())[:300].rstrip(".")
        raise ConfigError(
            "model-not-loadable", f"model.name={name!r} cannot be loaded: {why}.", how_to_name_a_model(name)
        ) from error
    # transformers fills what it does not find with random numbers, and its warning is one of those we silence.
    random = sorted({*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])})
    if random:
        raise ConfigError(
            "model-not-loadable",
            f"model.name={name!r}: its files do not hold all weights of its config.json; "
            f"{len(random)} are missing or of another shape, such as {random[0]}.",
            "Save or download the model again.",
        )
    return model, tokenizer


def _quiet() -> None:
    """Progress is shown by rllm; the bars of the libraries below would break into it."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
