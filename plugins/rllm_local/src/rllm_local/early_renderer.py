"""An early check of a run's renderer, before the weights are loaded. Weights take minutes, a tokenizer seconds."""

from __future__ import annotations

from typing import Any

from rllm_backend_kit.hub import only_cached
from rllm_backend_kit.model_files import stop_ids
from rllm_backend_kit.renderers import make_renderer, options_without_thinking
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.renderer import RendererSetup
from rllm_local.adapter_files import adapter_directory, read_base
from rllm_local.model_name import TINY, directory_of


def try_renderer(run: RunContext, name: str, *, local_files_only: bool = False) -> None:
    """Create the renderer of the model `name` and discard it.

    Raises:
        ConfigError: the renderer does not support the run's settings. Errors of the model itself are reported when it
            is loaded.
    """
    tokenizer = _tokenizer(name, local_files_only)
    if tokenizer is not None and tokenizer.chat_template is not None:
        options = options_without_thinking(tokenizer) if run.config.rllm.disable_thinking else {}
        stops = stop_ids(tokenizer, None)
        make_renderer(run, RendererSetup(name=name, tokenizer=tokenizer, stop_ids=stops, template_options=options))


def check_renderer(run: RunContext) -> None:
    """Call `try_renderer` if the tokenizer is on this machine. ``--dry-run`` uses it, so it makes no network requests.

    The template of `tiny` is always valid, so a dry run with it does not import torch.
    """
    if run.backend_config.model.name != TINY:
        try_renderer(run, run.backend_config.model.name, local_files_only=True)


def _tokenizer(name: str, local_files_only: bool) -> Any:
    if name == TINY:
        from rllm_local.tiny import build_tokenizer

        return build_tokenizer()
    adapter = adapter_directory(name)
    if adapter is not None:
        return _tokenizer(read_base(adapter).name, local_files_only)
    from transformers import AutoTokenizer

    source = directory_of(name) or name
    try:
        return AutoTokenizer.from_pretrained(source, local_files_only=local_files_only or only_cached(source))
    except (OSError, ValueError, KeyError, ImportError):
        return None  # The model loader reports the error.
