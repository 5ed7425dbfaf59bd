"""The renderer of a run, for the model that a backend has loaded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rllm_backend_kit.portable_renderer import remember_origin
from rllm_backend_kit.renderer_checks import check_reads_back, check_reasoning_is_kept, check_tool_calls
from rllm_core.contracts.renderer import AUTO_RENDERER
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins import resolve
from rllm_core.rollout.options import RendererParams
from rllm_core.rollout.template_renderer import TemplateRenderer, template_renderer

if TYPE_CHECKING:
    from rllm_core.contracts.backend import RunContext
    from rllm_core.contracts.renderer import Renderer, RendererSetup


def make_renderer(run: RunContext, setup: RendererSetup) -> Renderer:
    """Make the renderer that ``rllm.renderer`` selects, for the model in `setup`. Backends call this in `start`.

    Raises:
        ConfigError: the renderer does not support this model, cannot read it, or does not support the run's settings.
    """
    name, make, params = "template", template_renderer, RendererParams()
    if run.renderer is not None:
        name, make, params = run.renderer.plugin.name, run.renderer.registered.load(), run.renderer.params
    renderer: Renderer = make(setup, params)
    if type(renderer) is TemplateRenderer:
        check_reads_back(renderer, partial(_another_renderer, setup))
    if run.config.rllm.accumulate_reasoning:
        check_reasoning_is_kept(renderer, name)
    if run.calls_tools:
        check_tool_calls(renderer, name)
    remember_origin(renderer, setup, run.renderer)
    return renderer


def _another_renderer(setup: RendererSetup) -> str:
    """The renderer to choose if this model's chat template cannot be read."""
    try:
        knows = not isinstance(resolve("renderer", AUTO_RENDERER).load()(setup, RendererParams()), TemplateRenderer)
    except PluginError:
        return "Install a renderer that knows more models: `pip install rllm-renderers`, and set rllm.renderer=auto."
    except ConfigError as error:
        return f"rllm.renderer=auto knows this model, but cannot be used here: {error.message}"
    if knows:
        return "Set rllm.renderer=auto, which knows this model."
    return (
        "Set rllm.renderer=renderers:FAMILY if the model is from a family that the library renderers knows, or write "
        "a renderer: `rllm plugins new my-renderer --kind renderer`."
    )


def options_without_thinking(tokenizer: Any) -> dict[str, Any]:
    """The template options that ask for answers without a thinking part (`rllm.disable_thinking`).

    Raises:
        ConfigError: the chat template has no switch for that.
    """
    template = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):  # several, by name; chats use the default one
        template = template.get("default")
    if "enable_thinking" not in (template or ""):
        raise ConfigError(
            "no-thinking-switch",
            "rllm.disable_thinking is true, but the chat template of this model has no switch `enable_thinking`.",
            "Remove rllm.disable_thinking, or choose a model that has the switch.",
        )
    return {"enable_thinking": False}
