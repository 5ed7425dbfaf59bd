"""Plugin specs of rllm-renderers: the renderers `auto` and `renderers`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.renderer import RendererPlugin
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_renderers() -> Iterable[RendererPlugin[Any]]:
    yield RendererPlugin(
        name="auto",
        summary="The library renderers if it supports the model, else the model's chat template.",
        load_params=load_from("rllm_core.rollout.options", "TemplateParams"),
        load=load_from("rllm_renderers.auto", "make_auto"),
        alternatives=load_from("rllm_renderers.choice", "make_alternatives"),
    )
    yield RendererPlugin(
        name="renderers",
        summary="The library renderers: prompts, tool calls and reasoning of known model families.",
        load_params=load_from("rllm_renderers.options", "RenderersParams"),
        family_option="config",
        load=load_from("rllm_renderers.choice", "make_renderers"),
        check=call_lazily("rllm_renderers.choice", "check_params"),
    )
