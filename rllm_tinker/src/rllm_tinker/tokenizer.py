"""The tokenizer and chat template on this machine. rllm sends only token ids to the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rllm_backend_kit.hub import only_cached
from rllm_backend_kit.model_files import generation_stop_ids, model_directory, stop_ids
from rllm_backend_kit.renderers import options_without_thinking
from rllm_core.contracts.renderer import RendererSetup
from rllm_core.errors import ConfigError, did_you_mean
from rllm_tinker.settings import TinkerConfig

TINY = "tiny"


def renderer_setup(config: TinkerConfig, base_model: str) -> RendererSetup:
    """Return the tokenizer, stop ids and template options for a base model's renderer.

    Raises:
        ConfigError: the tokenizer cannot be loaded, has no chat template, or lacks a template option that is set in the
            configuration.
    """
    name = _inside_checkpoint(config.model.tokenizer or base_model)
    tokenizer = _load(name)
    if tokenizer.chat_template is None:
        raise ConfigError(
            "no-chat-template",
            f"The tokenizer {name!r} has no chat template.",
            "Set model.tokenizer to the tokenizer of a chat or instruct model, or to a directory whose "
            "tokenizer_config.json contains a chat template.",
        )
    stops = stop_ids(tokenizer, None if name == TINY else generation_stop_ids(name))
    return RendererSetup(
        name=name,
        tokenizer=tokenizer,
        stop_ids=stops,
        template_options=_template_options(tokenizer, config),
    )


def _inside_checkpoint(name: str) -> str:
    """Return the model's directory if `name` is a checkpoint, as the local server does. Otherwise return `name`."""
    return str(model_directory(Path(name).expanduser()) or name)


def _load(name: str) -> Any:
    if name == TINY:
        return _tiny()
    from transformers import AutoTokenizer

    if name.startswith((".", "/", "~")) and not Path(name).expanduser().is_dir():
        raise ConfigError(
            "tokenizer-not-found",
            f"The tokenizer directory {name!r} does not exist.",
            "Correct the path in model.tokenizer or model.name.",
        )
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=only_cached(name))
    except (OSError, ValueError, KeyError, ImportError) as error:
        why = " ".join(str(error).split())[:300].rstrip(".")
        raise ConfigError(
            "tokenizer-not-found",
            f"The tokenizer {name!r} cannot be loaded: {why}.",
            f"{did_you_mean(name, [TINY])} Set model.tokenizer to a directory or a hub id that contains the tokenizer "
            "of model.name.".strip(),
        ) from error


def _tiny() -> Any:
    try:
        from rllm_local.tiny import build_tokenizer
    except ImportError as error:
        raise ConfigError(
            "missing-package",
            "The model `tiny` needs rllm-local, which is not installed.",
            "pip install rllm-local",
        ) from error
    return build_tokenizer()


def _template_options(tokenizer: Any, config: TinkerConfig) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if config.rollout_engine.disable_thinking:
        options |= options_without_thinking(tokenizer)
    effort = config.rollout_engine.reasoning_effort
    if "reasoning_effort" in str(tokenizer.chat_template):
        options["reasoning_effort"] = effort
    elif effort != type(config.rollout_engine)().reasoning_effort:
        raise ConfigError(
            "no-thinking-switch",
            f"rollout_engine.reasoning_effort is {effort!r}, but this model's chat template has no such option.",
            "Remove the key, or use a model whose template reads reasoning_effort.",
        )
    return options
