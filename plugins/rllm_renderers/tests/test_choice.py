"""Which renderer a run gets, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest

from rllm_core.contracts.plugin import NoParams
from rllm_core.contracts.renderer import RendererSetup
from rllm_core.errors import ConfigError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_plugin_kit.small_model import STOP_ID, make_tokenizer
from rllm_renderers import plugin
from rllm_renderers.auto import make_auto
from rllm_renderers.choice import check_params, family_of, make_renderers
from rllm_renderers.options import RenderersParams


def setup(name: str = "./mine") -> RendererSetup:
    return RendererSetup(name=name, tokenizer=make_tokenizer(), stop_ids=frozenset({STOP_ID}))


def test_the_entry_point_has_the_name_of_the_distribution() -> None:
    (found,) = entry_points(group="rllm.plugins", name="rllm-renderers")
    assert found.load() is plugin


def test_listing_the_plugin_imports_no_library() -> None:
    script = "import sys; from rllm_renderers.plugin import rllm_renderers as r; list(r()); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200)
    modules = set(done.stdout.split())
    assert {name for name in modules if name.startswith("rllm_renderers.")} == {
        "rllm_renderers.plugin",
        "rllm_renderers.options",
    }
    assert not {"renderers", "numpy", "openai"} & modules


@pytest.mark.parametrize(("name", "family"), [("Qwen/Qwen3-0.6B", "qwen3"), ("Qwen/Qwen3-0.6B-mine", None)])
def test_a_model_is_known_by_its_hub_name_as_it_is(name: str, family: str | None) -> None:
    assert family_of(setup(name)) == family


def test_a_model_that_is_not_known_keeps_its_template() -> None:
    assert isinstance(make_auto(setup(), NoParams()), TemplateRenderer)


def test_renderers_alone_refuses_a_model_that_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match="does not support the model") as caught:
        make_renderers(setup(), RenderersParams())
    assert "rllm.renderer=renderers:qwen3" in caught.value.hint


def test_a_family_whose_special_tokens_the_model_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="Renderer 'qwen3' of the library renderers cannot be made"):
        make_renderers(setup(), RenderersParams(config="qwen3"))


@pytest.mark.parametrize(
    ("params", "message", "hint"),
    [
        ({"config": "qwen"}, "has no family 'qwen'", "Did you mean"),
        ({"config": "zzz"}, "has no family 'zzz'", "Its families: deepseek-r1"),
        ({"config": "default"}, "has no family 'default'", ""),
        (
            {"config": "qwen3", "options": {"thinking": 1}},
            "of family 'qwen3': thinking: Extra inputs",
            "rllm.renderer.options",
        ),
        ({"options": {"thinking_retention": "all"}}, "rllm.renderer.config is not", "Set rllm.renderer.config"),
    ],
)
def test_options_are_looked_at_before_anything_is_loaded(params: Any, message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_params(RenderersParams(**params))
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_options_of_a_family_are_taken() -> None:
    check_params(RenderersParams(config="qwen3", options={"thinking_retention": "all"}))
    check_params(RenderersParams())
