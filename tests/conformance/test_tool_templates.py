"""`tests/tools/tool_templates.py`: no known template is silently wrong, and a wrong one is found."""

from __future__ import annotations

from typing import Any

import pytest
import tool_templates
from chat_templates import renderer_of, templates

from rllm_core.rollout.template_renderer import TemplateRenderer

BY_NAME = {path.stem: path for path in templates()}
pytestmark = pytest.mark.skipif(not BY_NAME, reason="trl is not installed; `make install` puts it into conformance/")


@pytest.mark.long
def test_no_template_is_silently_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool_templates.main() == 0
    lines = capsys.readouterr().out.splitlines()
    sums = [line for line in lines if "silently wrong " in line]
    assert len(lines) == 2 * len(BY_NAME) + 2
    assert [line.endswith("silently wrong 0") for line in sums] == [True, True]


class Losing(TemplateRenderer):
    """A renderer whose next prompts have no tool results."""

    def bridge(self, prompt_ids: Any, response_ids: Any, messages: Any, tools: Any = ()) -> Any:
        return super().bridge(prompt_ids, response_ids, [m for m in messages if m["role"] != "tool"], tools)


class Rewriting(TemplateRenderer):
    """A renderer whose next prompts end the sampled response differently."""

    def bridge(self, prompt_ids: Any, response_ids: Any, messages: Any, tools: Any = ()) -> Any:
        return super().bridge(prompt_ids, [*response_ids[:-2], response_ids[-1]], messages, tools)


class Misreading(TemplateRenderer):
    """A renderer that reads no calls."""

    call_format = None


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (Losing, "loses walrus one"),
        (Rewriting, "changes what was sampled"),
        (Misreading, "reads ()"),
        (TemplateRenderer, None),
    ],
)
def test_wrong_renderer_is_found_in_a_rendered_conversation(kind: Any, problem: str | None) -> None:
    renderer = renderer_of(BY_NAME["qwen3"])
    assert tool_templates.find_problem(kind(renderer.tokenizer, renderer.stop_ids)) == problem
