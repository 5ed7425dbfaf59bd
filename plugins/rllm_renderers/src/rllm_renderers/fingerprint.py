"""Find the family of a model that writes the same tokens as the model's chat template.

The library itself finds a family only by the model's Hub name, but a local directory has no Hub name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from renderers import base, config_from_name, create_renderer

from rllm_core.contracts.renderer import RendererSetup
from rllm_core.data.messages import Message, Tool
from rllm_core.errors import RolloutError
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_renderers.library_renderer import LibraryRenderer

SYSTEM: Message = {"role": "system", "content": "Be brief."}
USER: Message = {"role": "user", "content": "What is one plus one?"}
PLAIN: Message = {"role": "assistant", "content": "Two."}
ANSWER: Message = {**PLAIN, "reasoning_content": "One and one."}

CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "add", "arguments": json.dumps({"first": 1, "words": "one", "exact": True})},
        }
    ],
}
RESULT: Message = {"role": "tool", "tool_call_id": "call00001", "name": "add", "content": "2"}
TYPES = {"first": "integer", "words": "string", "exact": "boolean"}
TOOLS: tuple[Tool, ...] = (
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {
                "type": "object",
                "properties": {name: {"type": kind, "description": "A value."} for name, kind in TYPES.items()},
                "required": ["first"],
            },
        },
    },
)
CONVERSATIONS: tuple[tuple[Sequence[Message], Sequence[Tool]], ...] = (
    ((USER,), ()),
    ((SYSTEM, USER), ()),
    ((USER, ANSWER, USER), ()),
    ((SYSTEM, USER), TOOLS),
    ((SYSTEM, USER, CALL, RESULT), TOOLS),
    ((USER, {**CALL, "reasoning_content": "I add."}, RESULT, RESULT, ANSWER, USER), TOOLS),
    # Responses that a run trains. The last turn has its own rules for reasoning in many templates.
    ((USER, PLAIN), ()),
    ((USER, ANSWER), ()),
    ((USER, {**PLAIN, "content": ""}), ()),
    ((USER, CALL), TOOLS),
    ((USER, {**CALL, "content": "Wait.", "reasoning_content": "I add."}), TOOLS),
    ((USER, CALL, RESULT, PLAIN), TOOLS),
)
"""The last message of each is the user's, a tool's result, or the response that fine-tuning trains."""
HARMONY = "gpt-oss"
"""The family whose vocabulary the library downloads. It is tried only if the tokenizer has the family's marks."""
HARMONY_MARK, HARMONY_CHANNEL = "<|channel|>", "<|channel|>analysis<|message|>"


def family_of_template(setup: RendererSetup, first: str | None = None) -> str | None:
    """Return a family that renders every conversation as the chat template does. None if no family does.

    Args:
        setup: the model.
        first: the family to return if several families do.
    """
    if HARMONY_CHANNEL in str(getattr(setup.tokenizer, "chat_template", "")):
        return HARMONY  # The library starts the first channel itself, so its prompts differ from the template's.
    expected = list(_by_template(setup, CONVERSATIONS))
    if first is None and not any(tools for _, tools, _ in expected):
        return None  # Without tools, too many families have the same output.
    base._populate_registry()
    names = sorted(base.RENDERER_REGISTRY, key=lambda name: name != first)
    return next((name for name in names if _renders(name, setup, expected)), None)


def families_with_same_prompts(setup: RendererSetup) -> Iterator[str]:
    """Yield the families that render first prompts as the chat template does. They may write other responses."""
    base._populate_registry()
    expected = list(
        _by_template(setup, ((messages, tools) for messages, tools in CONVERSATIONS if _is_first(messages)))
    )
    yield from (name for name in base.RENDERER_REGISTRY if _renders(name, setup, expected))


def _is_first(messages: Sequence[Message]) -> bool:
    return all(message["role"] in ("system", "user") for message in messages)


def _by_template(
    setup: RendererSetup, conversations: Iterable[tuple[Sequence[Message], Sequence[Tool]]]
) -> Iterator[tuple[Sequence[Message], Sequence[Tool], list[int]]]:
    template = TemplateRenderer(setup.tokenizer, setup.stop_ids, setup.template_options)
    for messages, tools in conversations:
        try:
            yield messages, tools, template.prompt(messages, tools).tolist()
        except RolloutError:
            continue  # The template rejects the conversation, so there is no output to compare.


def _renders(name: str, setup: RendererSetup, expected: Sequence[tuple[Any, Any, list[int]]]) -> bool:
    tokenizer = setup.tokenizer
    unknown = getattr(tokenizer, "unk_token_id", None)
    if name == "default" or (name == HARMONY and tokenizer.convert_tokens_to_ids(HARMONY_MARK) in (None, unknown)):
        return False
    try:
        made = create_renderer(
            tokenizer, config_from_name(name), chat_template_kwargs=dict(setup.template_options) or None
        )
        renderer = LibraryRenderer(made, setup)
        return all(renderer.prompt(messages, tools).tolist() == tokens for messages, tools, tokens in expected)
    except Exception:  # noqa: BLE001  (each family raises a different error if special tokens are missing)
        return False
