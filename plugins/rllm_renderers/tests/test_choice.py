"""Which renderer a run gets, and what is said when there is none."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm_core.contracts.renderer import RendererSetup
from rllm_core.errors import ConfigError
from rllm_core.notices import forget_warnings
from rllm_core.rollout.options import TemplateParams
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_plugin_kit.small_model import STOP_ID, make_tokenizer
from rllm_renderers.auto import make_auto
from rllm_renderers.choice import check_params, family_of, make_renderers
from rllm_renderers.options import RenderersParams


def setup(name: str = "./mine") -> RendererSetup:
    return RendererSetup(name=name, tokenizer=make_tokenizer(), stop_ids=frozenset({STOP_ID}))


@pytest.mark.parametrize(("name", "family"), [("Qwen/Qwen3-0.6B", "qwen3"), ("Qwen/Qwen3-0.6B-mine", None)])
def test_model_without_template_is_known_by_name(name: str, family: str | None) -> None:
    model = setup(name)
    model.tokenizer.chat_template = None
    assert family_of(model) == family


def test_hub_name_with_different_template_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    forget_warnings()
    assert family_of(setup("Qwen/Qwen3-8B")) is None
    assert "rllm.renderer=renderers:qwen3" in capsys.readouterr().err


def test_unknown_model_keeps_its_template() -> None:
    assert isinstance(make_auto(setup(), TemplateParams()), TemplateRenderer)


def test_renderers_only_rejects_an_unknown_model() -> None:
    with expect_error(ConfigError, "unknown-choice", "'renderers'", "rllm.renderer=renderers:qwen3"):
        make_renderers(setup(), RenderersParams())


def test_family_with_missing_special_tokens_is_rejected() -> None:
    with expect_error(ConfigError, "renderer-not-loadable", "'qwen3'"):
        make_renderers(setup(), RenderersParams(config="qwen3"))


@pytest.mark.parametrize(
    ("params", "code", "values"),
    [
        ({"config": "qwen"}, "unknown-choice", ["'qwen'", "'qwen3"]),
        ({"config": "zzz"}, "unknown-choice", ["'zzz'", "deepseek-r1"]),
        ({"config": "default"}, "unknown-choice", ["'default'"]),
        (
            {"config": "qwen3", "options": {"thinking": 1}},
            "renderer-options-rejected",
            ["'qwen3'", "thinking: Extra inputs", "rllm.renderer.options"],
        ),
        ({"options": {"thinking_retention": "all"}}, "missing-key", ["rllm.renderer.options", "rllm.renderer.config"]),
    ],
)
def test_options_are_looked_at_before_anything_is_loaded(params: Any, code: str, values: list[str]) -> None:
    with expect_error(ConfigError, code, *values):
        check_params(RenderersParams(**params))


def test_options_of_a_family_are_taken() -> None:
    check_params(RenderersParams(config="qwen3", options={"thinking_retention": "all"}))
    check_params(RenderersParams())
