"""Plugin specs of rllm-renderers: the renderers `auto` and `renderers`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.renderer import RendererPlugin
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl
from rllm_core.rollout.options import RendererParams
from rllm_renderers.options import RenderersParams

requires_api = 1


def _check(params: RenderersParams) -> None:
    from rllm_renderers.choice import check_params

    check_params(params)


@hookimpl
def rllm_renderers() -> Iterable[RendererPlugin[Any]]:
    yield RendererPlugin(
        name="auto",
        summary="The library renderers if it supports the model, else the model's chat template.",
        params=RendererParams,
        load=load_from("rllm_renderers.auto", "make_auto"),
        alternatives=load_from("rllm_renderers.choice", "make_alternatives"),
    )
    yield RendererPlugin(
        name="renderers",
        summary="The library renderers: prompts, tool calls and reasoning of known model families.",
        params=RenderersParams,
        family_option="config",
        load=load_from("rllm_renderers.choice", "make_renderers"),
        check=_check,
    )
