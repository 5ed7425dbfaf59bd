"""The renderer of a run, for backends, and the built-in one: the model's own chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllm_core.contracts.plugin import NoParams
from rllm_core.rollout.renderer_checks import check_reasoning_is_kept, check_tool_calls
from rllm_core.rollout.template_renderer import TemplateRenderer

if TYPE_CHECKING:
    from rllm_core.contracts.backend import RunContext
    from rllm_core.contracts.renderer import Renderer, RendererSetup


def make_renderer(run: RunContext, setup: RendererSetup) -> Renderer:
    """What `run` has chosen by ``rllm.renderer``, for the model of `setup`. Backends call this in `start`.

    Raises:
        ConfigError: the renderer does not know this model, or cannot do what the run asks of it.
    """
    name, make, params = "template", template_renderer, NoParams()
    if run.renderer is not None:
        name, make, params = run.renderer.plugin.name, run.renderer.registered.load(), run.renderer.params
    renderer: Renderer = make(setup, params)
    if run.config.rllm.accumulate_reasoning:
        check_reasoning_is_kept(renderer, name)
    if run.calls_tools:
        check_tool_calls(renderer, name)
    return renderer


def template_renderer(setup: RendererSetup, params: NoParams) -> TemplateRenderer:
    """``template``: the chat template that comes with the model's tokenizer."""
    return TemplateRenderer(setup.tokenizer, setup.stop_ids, setup.template_options)
