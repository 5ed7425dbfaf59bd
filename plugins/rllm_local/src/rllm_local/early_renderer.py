"""A run's renderer and context before the weights are loaded. Weights take minutes, a tokenizer seconds."""

from __future__ import annotations

from typing import Any

from rllm_backend_kit.model_files import (
    generation_stop_ids,
    is_only_cached,
    longest_context,
    silence_transformers,
    stop_ids,
)
from rllm_backend_kit.renderers import make_renderer, options_without_thinking
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.renderer import Renderer, RendererSetup
from rllm_local.adapter_files import adapter_directory, read_base
from rllm_local.model_name import TINY, directory_of


def early_renderer(run: RunContext, name: str, *, local_files_only: bool = False) -> tuple[Renderer, int] | None:
    """Return the renderer of the model `name`, and the run's longest context in tokens.

    Return None if the files of the model cannot be read. Its loader reports the reason.

    Raises:
        ConfigError: the renderer does not support the run's settings.
    """
    adapter = adapter_directory(name)
    if adapter is not None:
        return early_renderer(run, read_base(adapter).name, local_files_only=local_files_only)
    found = _files(name, local_files_only)
    if found is None or found[0].chat_template is None:
        return None
    tokenizer, config, stops = found
    context = longest_context(config and config.get_text_config(), tokenizer.model_max_length)
    return build_renderer(run, name, tokenizer, stops), min(context, run.backend_config.training.max_length)


def build_renderer(run: RunContext, name: str, tokenizer: Any, stops: frozenset[int]) -> Renderer:
    """Return the run's renderer for the tokenizer and the stop tokens of the model `name`.

    Raises:
        ConfigError: the renderer does not support the run's settings.
    """
    options = options_without_thinking(tokenizer) if run.config.rllm.disable_thinking else {}
    setup = RendererSetup(name=name, tokenizer=tokenizer, stop_ids=stops, template_options=options)
    return make_renderer(run, setup)


def cached_renderer(run: RunContext) -> tuple[Renderer, int] | None:
    """Return `early_renderer` without network requests, for ``--dry-run``.

    Return None for `tiny`. Its template is always valid, so a dry run with it does not import torch.
    """
    name = run.backend_config.model.name
    return None if name == TINY else early_renderer(run, name, local_files_only=True)


def _files(name: str, local_files_only: bool) -> tuple[Any, Any, frozenset[int]] | None:
    """Return the tokenizer, the config (None for `tiny`) and the stop tokens. None if they cannot be read."""
    if name == TINY:
        from rllm_local.tiny import build_tokenizer

        tokenizer: Any = build_tokenizer()
        return tokenizer, None, stop_ids(tokenizer, None)
    from transformers import AutoConfig, AutoTokenizer

    silence_transformers()
    source = directory_of(name) or name
    cached = local_files_only or is_only_cached(source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=cached)
        config = AutoConfig.from_pretrained(source, local_files_only=cached)
    except (OSError, ValueError, KeyError, ImportError):
        return None
    return tokenizer, config, stop_ids(tokenizer, generation_stop_ids(source, local_files_only=cached))
