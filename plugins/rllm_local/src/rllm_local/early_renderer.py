"""The renderer of a run, tried before its weights are loaded: they take minutes, a tokenizer takes none."""

from __future__ import annotations

from typing import Any

from rllm_backend_kit.hub import only_cached
from rllm_backend_kit.model_files import stop_ids
from rllm_backend_kit.renderers import make_renderer
from rllm_core.contracts.backend import RunContext
from rllm_core.contracts.renderer import RendererSetup
from rllm_local.model_name import TINY, folder_of


def try_renderer(run: RunContext, name: str) -> None:
    """Make the renderer of the model `name` and forget it.

    Raises:
        ConfigError: it cannot do what the run asks of it. What is wrong with the model itself is found by loading it.
    """
    tokenizer = _tokenizer(name)
    if tokenizer is not None and tokenizer.chat_template is not None:
        make_renderer(run, RendererSetup(name=name, tokenizer=tokenizer, stop_ids=stop_ids(tokenizer, None)))


def _tokenizer(name: str) -> Any:
    if name == TINY:
        from rllm_local.tiny import build_tokenizer

        return build_tokenizer()
    from transformers import AutoTokenizer

    source = folder_of(name) or name
    try:
        return AutoTokenizer.from_pretrained(source, local_files_only=only_cached(source))
    except (OSError, ValueError, KeyError, ImportError):
        return None  # Loading the model says what is wrong.
