"""Find the library's family of a model, and make its renderer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from renderers import base, configs

from rllm_core.contracts.renderer import Renderer, RendererSetup
from rllm_core.errors import ConfigError, did_you_mean
from rllm_core.notices import one_line, warn_once
from rllm_core.rollout.options import RendererParams
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_renderers.fingerprint import HARMONY, families_with_same_prompts, family_of_template
from rllm_renderers.library_renderer import LibraryRenderer
from rllm_renderers.options import RenderersParams


def make_known(setup: RendererSetup, params: RendererParams) -> Renderer | None:
    """Make the library's renderer. None if the library does not support the model."""
    family = family_of(setup)
    return None if family is None else _make_equal(setup, family, RenderersParams(control_tokens=params.control_tokens))


def make_renderers(setup: RendererSetup, params: RenderersParams) -> Renderer:
    """Make the library's renderer.

    Raises:
        ConfigError: no family is set and none matches the model, or the model's tokenizer does not fit the family.
    """
    if params.config is not None:
        return _make(setup, params.config, params)
    family = family_of(setup)
    if family is None:
        raise ConfigError(
            "unknown-choice",
            f"Renderer 'renderers' does not support the model {setup.name!r}: no family writes the same tokens as its "
            "chat template.",
            "Set its family, for example rllm.renderer=renderers:qwen3, or use rllm.renderer=auto.",
        )
    return _make_equal(setup, family, params)


def make_alternatives(setup: RendererSetup) -> Iterator[tuple[str, Renderer]]:
    """Yield the template's renderer and those families with the same prompts, each with its name in
    ``rllm.renderer``."""
    yield "template", TemplateRenderer(setup.tokenizer, setup.stop_ids, setup.template_options)
    for family in families_with_same_prompts(setup):
        yield f"renderers:{family}", _make(setup, family, RenderersParams())


def check_params(params: RenderersParams) -> None:
    """Raise ConfigError if the library does not have the family, or the family does not have the options."""
    if params.config is None and params.options:
        raise ConfigError(
            "missing-key",
            "rllm.renderer.options is set, but rllm.renderer.config is not.",
            "Set rllm.renderer.config to the family of the options.",
        )
    if params.config is not None:
        _config(params.config, params.options)


def family_of(setup: RendererSetup) -> str | None:
    """Return the family that writes the same tokens as the model's chat template. None if no family does.

    If the tokenizer has no chat template, return the family for the model's Hub name.
    """
    names = (setup.name, getattr(setup.tokenizer, "name_or_path", ""))
    named = next((base.MODEL_RENDERER_MAP[name] for name in names if name in base.MODEL_RENDERER_MAP), None)
    if not getattr(setup.tokenizer, "chat_template", None):
        return named
    found = family_of_template(setup, first=named)
    if named is not None and found != named:
        warn_once(
            f"The library renderers has family {named!r} for {setup.name}, but it writes other tokens than the model's "
            f"chat template. The run uses {f'family {found!r}' if found else 'the chat template'}. To use the family, "
            f"set rllm.renderer=renderers:{named}."
        )
    return found


def _make_equal(setup: RendererSetup, family: str, params: RenderersParams) -> Renderer:
    """Make the renderer of a family that was found by its equal prompts. The chat template itself writes them."""
    is_compared = bool(getattr(setup.tokenizer, "chat_template", None)) and family != HARMONY
    return _make(setup, family, params, prompts_of_template=is_compared)


def _make(setup: RendererSetup, family: str, params: RenderersParams, *, prompts_of_template: bool = False) -> Renderer:
    config = _config(family, params.options)
    try:
        made = base.create_renderer(setup.tokenizer, config, chat_template_kwargs=dict(setup.template_options) or None)
    except Exception as error:
        raise ConfigError(
            "renderer-not-loadable",
            f"Renderer {family!r} of the library renderers cannot be made for {setup.name!r}: {one_line(str(error))}.",
            "Set a different family, or rllm.renderer=template. If a download failed, set TIKTOKEN_ENCODINGS_BASE to "
            "a directory with the vocabulary file.",
        ) from error
    return LibraryRenderer(made, setup, params.control_tokens, prompts_of_template=prompts_of_template)


def _config(family: str, options: dict[str, Any]) -> configs.BaseRendererConfig:
    base._populate_registry()
    known = [name for name in base.RENDERER_REGISTRY if name != "default"]
    if family not in known:
        raise ConfigError(
            "unknown-choice",
            f"The library renderers has no family {family!r}.",
            did_you_mean(family, known) or f"Its families: {', '.join(sorted(known))}.",
        )
    try:
        return configs._config_class_for(family)(**options)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(
            "renderer-options-rejected",
            f"rllm.renderer.options of family {family!r}: {problems}.",
            "Change these keys of rllm.renderer.options, or remove them.",
        ) from error
