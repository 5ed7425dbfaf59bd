"""The renderer `auto`. It imports the library only if needed, because every run uses `auto`.

The import takes a second.
"""

from __future__ import annotations

from rllm_core.contracts.renderer import Renderer, RendererSetup
from rllm_core.rollout.options import TemplateParams
from rllm_core.rollout.template_renderer import template_renderer


def make_auto(setup: RendererSetup, params: TemplateParams) -> Renderer:
    """Return the library's renderer if the library supports the model, else a renderer of the model's chat template."""
    if params.date is None and _may_be_known(setup):
        from rllm_renderers.choice import make_known

        if (known := make_known(setup, params)) is not None:
            return known
    return template_renderer(setup, params)


def _may_be_known(setup: RendererSetup) -> bool:
    """True if the model has a Hub name, or a template with tools. The library needs one of them to find the family."""
    names = (setup.name, getattr(setup.tokenizer, "name_or_path", ""))
    has_hub_name = any(name.count("/") == 1 and name[0] not in "./~" for name in names)
    return has_hub_name or "tools" in str(getattr(setup.tokenizer, "chat_template", ""))
