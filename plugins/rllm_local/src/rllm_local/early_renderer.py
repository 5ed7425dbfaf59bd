"""The renderer of a run, tried before its weights are loaded: they take minutes, a tokenizer takes none."""

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
    """Make the renderer of the model `name` and forget it.

    Raises:
        ConfigError: it cannot do what the run asks of it. What is wrong with the model itself is found by loading it.
    """
    tokenizer = _tokenizer(name, local_files_only)
    if tokenizer is not None and tokenizer.chat_template is not None:
        options = options_without_thinking(tokenizer) if run.config.rllm.disable_thinking else {}
        stops = stop_ids(tokenizer, None)
        make_renderer(run, RendererSetup(name=name, tokenizer=tokenizer, stop_ids=stops, template_options=options))


def check_renderer(run: RunContext) -> None:
    """As `try_renderer`, if the tokenizer is on this machine. For ``--dry-run``: asks no network.

    The template of `tiny` is known to be read back, so that a dry run of it need not import torch.
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
        return None  # Loading the model says what is wrong.
