"""What rllm-renderers offers: the renderers `auto` and `renderers`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from rllm_core.contracts.renderer import Renderer, RendererPlugin
from rllm_core.plugins import hookimpl
from rllm_renderers.options import RenderersParams

requires_api = 1


def _made_by(module: str, name: str) -> Callable[[], Callable[..., Renderer]]:
    def load() -> Callable[..., Renderer]:
        make: Callable[..., Renderer] = getattr(import_module(f"rllm_renderers.{module}"), name)
        return make

    return load


def _check(params: RenderersParams) -> None:
    from rllm_renderers.choice import check_params

    check_params(params)


@hookimpl
def rllm_renderers() -> Iterable[RendererPlugin[Any]]:
    yield RendererPlugin(
        name="auto",
        summary="The library renderers where it knows the model, the chat template elsewhere.",
        load=_made_by("auto", "make_auto"),
    )
    yield RendererPlugin(
        name="renderers",
        summary="The library renderers: prompts, tool calls and reasoning of known model families.",
        params=RenderersParams,
        family_option="config",
        load=_made_by("choice", "make_renderers"),
        check=_check,
    )
