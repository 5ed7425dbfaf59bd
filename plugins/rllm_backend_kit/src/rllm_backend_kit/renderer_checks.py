"""Check a new renderer against the run's settings, with a test conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message, Tool
from rllm_core.errors import ConfigError, RolloutError
from rllm_core.rollout.template_renderer import THINK, TemplateRenderer

Ids = NDArray[np.int32]
USER: Message = {"role": "user", "content": "one plus one?"}
NEXT: Message = {"role": "user", "content": "and plus one?"}
SYSTEM: Message = {"role": "system", "content": "be brief"}
SAID, REASONING = "two", "simple sum"
ADD = "add_numbers"
TOOLS: tuple[Tool, ...] = (
    {
        "type": "function",
        "function": {
            "name": ADD,
            "description": "Adds two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"first": {"type": "integer"}, "second": {"type": "integer"}},
                "required": ["first", "second"],
            },
        },
    },
)
OTHER_MODEL = "Choose a model that is made for tools, or another renderer (rllm.renderer)."
BEYOND_TEMPLATES = (
    "Choose a model that is made for tools, or another renderer: rllm.renderer=auto (pip install rllm-renderers) reads "
    "and writes the calls of more models."
)


def check_reasoning_is_kept(renderer: Renderer, name: str) -> None:
    """Reject ``rllm.accumulate_reasoning`` if later prompts do not contain the model's reasoning.

    Raises:
        ConfigError: the renderer renders the whole conversation again for each turn and drops earlier reasoning.
    """
    try:
        first = renderer.prompt([USER])
        responses = [renderer.response_ids(text) for text in ("two", "<think>one more</think>two")]
        if all(renderer.bridge(first, response, [NEXT]) is not None for response in responses):
            return
        one, other = (renderer.prompt([USER, _thinking(reasoning), NEXT]) for reasoning in ("abc", "xyz"))
    except RolloutError:
        return  # A template that rejects such messages hides nothing. The run reports its error if it needs them.
    if one.tolist() == other.tolist():
        raise ConfigError(
            "unused-key",
            f"rllm.accumulate_reasoning is true, but renderer {name!r} drops this model's earlier reasoning in each "
            "turn: the key has no effect.",
            "Set rllm.accumulate_reasoning=false, or choose another renderer (rllm.renderer=template keeps reasoning).",
        )


def check_reads_back(renderer: TemplateRenderer, another: Callable[[], str]) -> None:
    """Refuse a chat template whose responses `TemplateRenderer` cannot read.

    Args:
        renderer: for the model.
        another: gives the remedy, which names a renderer that can.

    Raises:
        ConfigError: with the first difference.
    """
    try:
        problem = _problem_with_reading(renderer)
    except RolloutError:
        return  # A template that refuses two turns of the user can still be used for one.
    if problem is not None:
        raise ConfigError(
            "unsupported-chat-template",
            f"Renderer 'template' cannot be used with this model's chat template: {problem}.",
            another(),
        )


def _problem_with_reading(renderer: TemplateRenderer) -> str | None:
    first = renderer.prompt([USER])
    if USER["content"] not in renderer.text(first):
        return "it does not show what the user says"
    whole = renderer.prompt([USER, {"role": "assistant", "content": SAID}, NEXT])
    found = _response_until(renderer, whole, first, SAID)
    if found is None:
        return "it does not show what the model said before"
    content = renderer.parse(*found).content
    if content.strip() != SAID:
        return f"the answer {SAID!r} is read as {content!r}"
    for tools, thinking in _thinking_conversations():
        try:
            reasoning = _response_until(
                renderer, renderer.prompt(thinking, tools), renderer.prompt([USER], tools), REASONING
            )
        except RolloutError:
            continue  # The template refuses tools, or such a message.
        if reasoning is not None and (problem := _problem_with_reasoning(renderer, *reasoning)) is not None:
            return problem
    return None


def _thinking_conversations() -> Iterator[tuple[Sequence[Tool], Sequence[Message]]]:
    """Conversations in which the model thinks: before it answers, and before it calls a tool."""
    for key in ("reasoning_content", "thinking"):
        yield (), [USER, {"role": "assistant", "content": SAID, key: REASONING}]
        yield TOOLS, [USER, _calling(1) | {key: REASONING}, _result("3")]


def _problem_with_reasoning(renderer: TemplateRenderer, before: Ids, reasoning: Ids) -> str | None:
    if renderer.reasoning_ids is None and THINK in renderer.text([*before, *reasoning]):
        return None  # This tokenizer has no token for the mark, so reasoning stays in the text.
    parsed = renderer.parse(before, reasoning)
    if parsed.content.strip() or parsed.reasoning != REASONING:
        return f"the reasoning {REASONING!r} is read as the answer {parsed.content or parsed.reasoning!r}"
    return None


def _response_until(renderer: TemplateRenderer, whole: Ids, prompt: Ids, words: str) -> tuple[Ids, Ids] | None:
    """Return the tokens before the first response in a rendered conversation, and the response up to `words`."""
    start = _first_difference(whole, prompt)
    ends = range(start + 1, len(whole) + 1)
    end = next((end for end in ends if renderer.text(whole[start:end]).endswith(words)), None)
    return None if end is None else (whole[:start], whole[start:end])


def check_tool_calls(renderer: Renderer, name: str) -> None:
    """Reject a renderer that cannot show tools or their results to the model, or cannot read its calls.

    Raises:
        ConfigError: the message contains the part that the renderer drops or cannot read.
    """
    try:
        problem = _problem_with_tools(renderer)
    except RolloutError as error:
        problem = error.message.rstrip(".")
    if problem is not None:
        raise ConfigError(
            "tools-not-supported",
            f"This run needs tool calls, but renderer {name!r} does not support them for this model: {problem}.",
            BEYOND_TEMPLATES if name == "template" else OTHER_MODEL,
        )


def _problem_with_tools(renderer: Renderer) -> str | None:
    asked = [SYSTEM, USER]
    first = renderer.prompt(asked, TOOLS)
    if first.tolist() == renderer.prompt(asked).tolist():
        return "it does not show the model its tools"
    called, other_call = (renderer.prompt([*asked, _calling(number), _result("3")], TOOLS) for number in (1, 7))
    if called.tolist() == other_call.tolist():
        return "it leaves the arguments of earlier calls out"
    if called.tolist() == renderer.prompt([*asked, _calling(1), _result("4")], TOOLS).tolist():
        return "it leaves the results of tools out"
    if _first_difference(called, first) < len(first):  # The prompt begins reasoning, so the model reasons first.
        called = renderer.prompt([*asked, _calling(1) | {"reasoning_content": REASONING}, _result("3")], TOOLS)
    before, response = _response_in(called, first, renderer.stop_ids)
    calls = renderer.parse(before, response, TOOLS).tool_calls
    if [(call.name, dict(call.arguments)) for call in calls] != [(ADD, {"first": 1, "second": 2})]:
        return f"it does not read the call that its template writes, {renderer.text(response).strip()!r:.100}"
    then = [_result("3"), _result("4")]
    if _same(lambda message: renderer.bridge(first, response, [message], TOOLS), then):
        return "it leaves the results of tools out of the next prompt"
    if _same(lambda message: renderer.bridge(first, renderer.response_ids("3"), [message], TOOLS), [USER, NEXT]):
        return "it leaves what the user says out of the next prompt"
    return None


def _response_in(whole: Ids, prompt: Ids, stop_ids: frozenset[int]) -> tuple[Ids, Ids]:
    """Return the tokens before the first response in a rendered conversation, and the response."""
    start = _first_difference(whole, prompt)
    stops = np.flatnonzero(np.isin(whole[start:], [*stop_ids]))
    return whole[:start], whole[start : start + int(stops[0]) + 1] if stops.size else whole[start:]


def _first_difference(one: Ids, other: Ids) -> int:
    shorter = min(len(one), len(other))
    different = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(different[0]) if different.size else shorter


def _same(bridge: Callable[[Message], NDArray[np.int32] | None], messages: Sequence[Message]) -> bool:
    """True if two messages give the same next prompt. A renderer without a bridge was checked by its prompts."""
    one, other = map(bridge, messages)
    return one is not None and other is not None and one.tolist() == other.tolist()


def _calling(first: int) -> dict[str, Any]:
    function = {"name": ADD, "arguments": json.dumps({"first": first, "second": 2})}
    # Nine letters or digits: some templates take no other ids.
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00001", "type": "function", "function": function}],
    }


def _result(text: str) -> Message:
    return {"role": "tool", "tool_call_id": "call00001", "name": ADD, "content": text}


def _thinking(reasoning: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "two", "reasoning_content": reasoning}
