"""The renderer of a run, for the model that a backend has loaded. A test conversation checks the run's settings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

from rllm_backend_kit.portable_renderer import remember_origin
from rllm_core.contracts.renderer import AUTO_RENDERER
from rllm_core.errors import ConfigError, PluginError
from rllm_core.notices import warn_once
from rllm_core.plugins import resolve
from rllm_core.rollout.options import TemplateParams
from rllm_core.rollout.template_renderer import TemplateRenderer, template_renderer

if TYPE_CHECKING:
    from rllm_core.contracts.backend import RunContext
    from rllm_core.contracts.renderer import Renderer, RendererSetup


import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message, Tool
from rllm_core.errors import RolloutError
from rllm_core.rollout.template_renderer import THINK


def make_renderer(run: RunContext, setup: RendererSetup) -> Renderer:
    """Make the renderer that ``rllm.renderer`` selects, for the model in `setup`. Backends call this in `start`.

    Raises:
        ConfigError: the renderer does not support this model, cannot read it, or does not support the run's settings.
    """
    name, make, params = "template", template_renderer, TemplateParams()
    if run.renderer is not None:
        name, make, params = run.renderer.plugin.name, run.renderer.registered.load(), run.renderer.params
    renderer: Renderer = make(setup, params)
    if type(renderer) is TemplateRenderer:
        check_reads_back(renderer, partial(_another_renderer, setup))
        if renderer.writes_current_date:
            warn_once(
                "The chat template writes the current date into prompts, so prompts change at midnight and after a "
                f"resume. To fix the date, set rllm.renderer.date={date.today()}"
            )
    if run.config.rllm.accumulate_reasoning:
        check_reasoning_is_kept(renderer, name)
    if run.calls_tools:
        check_tool_calls(renderer, name)
    remember_origin(renderer, setup, run.renderer)
    return renderer


def _another_renderer(setup: RendererSetup) -> str:
    """The renderer to choose if this model's chat template cannot be read."""
    try:
        knows = not isinstance(resolve("renderer", AUTO_RENDERER).load()(setup, TemplateParams()), TemplateRenderer)
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
    conversation = [SYSTEM, USER]
    first = renderer.prompt(conversation, TOOLS)
    if first.tolist() == renderer.prompt(conversation).tolist():
        return "it does not show the model its tools"
    called, other_call = (renderer.prompt([*conversation, _calling(number), _result("3")], TOOLS) for number in (1, 7))
    if called.tolist() == other_call.tolist():
        return "it leaves the arguments of earlier calls out"
    if called.tolist() == renderer.prompt([*conversation, _calling(1), _result("4")], TOOLS).tolist():
        return "it leaves the results of tools out"
    if _first_difference(called, first) < len(first):  # The prompt begins reasoning, so the model reasons first.
        called = renderer.prompt([*conversation, _calling(1) | {"reasoning_content": REASONING}, _result("3")], TOOLS)
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
