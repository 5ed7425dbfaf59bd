"""Results of renderers on known chat templates when models call tools: ``python tests/tools/tool_templates.py``.

One line for each template: supported or refused, by `template` and by `auto`. A template is silently wrong if a run
starts with it although a conversation loses a call, a result or a sampled token. There must be none.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from chat_templates import setup_of, templates

from rllm_backend_kit.renderers import check_tool_calls
from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message, Tool
from rllm_core.errors import ConfigError
from rllm_core.rollout.options import TemplateParams
from rllm_core.rollout.template_renderer import template_renderer

SUPPORTED, REFUSED, WRONG = "supported", "refused", "silently wrong"
TOOLS: tuple[Tool, ...] = (
    {
        "type": "function",
        "function": {
            "name": "find_page",
            "description": "Finds a page of a book.",
            "parameters": {
                "type": "object",
                "properties": {"title": {"type": "string"}, "page": {"type": "integer"}},
                "required": ["title"],
            },
        },
    },
)
ARGUMENTS = {"title": "zebra 42", "page": 7}
ASKED: tuple[Message, ...] = (
    {"role": "system", "content": "Answer with quokkas."},
    {"role": "user", "content": "What does the okapi say?"},
)
RESULTS = ("walrus one", "walrus two")


def result(make: Any, path: Path) -> tuple[str, str]:
    """Return a renderer's result for a template, and the reason."""
    try:
        renderer = make(setup_of(path), TemplateParams())
        check_tool_calls(renderer, "")
    except ConfigError as error:
        return REFUSED, error.message.partition("for this model: ")[2] or error.message
    problem = find_problem(renderer)
    return (SUPPORTED, type(renderer).__name__) if problem is None else (WRONG, problem)


def find_problem(renderer: Renderer) -> str | None:
    """Render a call, two results and a further question. Return a part that a model would not see, or None."""
    prompt = renderer.prompt(ASKED, TOOLS)
    response = _call(renderer, prompt)
    calls = renderer.parse(prompt, response, TOOLS).tool_calls
    if [(call.name, dict(call.arguments)) for call in calls] != [("find_page", ARGUMENTS)]:
        return f"reads {calls!r}"
    for number, result in enumerate(RESULTS):
        message = {"role": "tool", "tool_call_id": calls[0].id, "name": "find_page", "content": result}
        after = renderer.bridge(prompt, response, [message], TOOLS)
        if after is None:
            return "has no bridge from a call to its result"
        kept = [*prompt.tolist(), *response.tolist()]
        if after.tolist()[: len(kept)] != kept:
            return "changes what was sampled"
        seen = renderer.text(after)
        missing = [each for each in ("quokkas", "okapi", "zebra 42", *RESULTS[: number + 1]) if each not in seen]
        if missing:
            return f"loses {', '.join(missing)}"
        prompt = after
    return None


def _call(renderer: Renderer, prompt: Any) -> Any:
    """Return the response of a model that calls the tool, as its own template writes it."""
    import json

    import numpy as np

    function = {"name": "find_page", "arguments": json.dumps(ARGUMENTS)}
    calling = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00001", "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": "call00001", "name": "find_page", "content": "."}
    whole = renderer.prompt([*ASKED, calling, result], TOOLS)
    same = int(np.argmin(np.append(whole[: len(prompt)] == prompt[: len(whole)], False)))
    end = next(place for place in range(same, len(whole)) if int(whole[place]) in renderer.stop_ids)
    return whole[same : end + 1]


def main() -> int:
    """Print a line for each template, and the sums. Return 1 if one is silently wrong."""
    from rllm_renderers.auto import make_auto

    found = templates()
    if not found:
        print("TRL is not installed: `make install` puts it into the directory conformance/ of the environment.")
        return 1
    wrong = 0
    for name, make in (("template", template_renderer), ("auto", make_auto)):
        counts: Counter[str] = Counter()
        for path in found:
            said, why = result(make, path)
            counts[said] += 1
            print(f"{name:<9} {path.stem:<24} {said:<14} {why}")
        print(f"{name:<9} {', '.join(f'{each} {counts[each]}' for each in (SUPPORTED, REFUSED, WRONG))}")
        wrong += counts[WRONG]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
