"""Find the library's family of a model, and make its renderer.

The library itself finds a family only by the model's Hub name, but a local directory has no Hub name. So the family is
the one that writes the same tokens as the model's chat template.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError
from renderers import base, config_from_name, configs, create_renderer

from rllm_core.contracts.renderer import Renderer, RendererSetup
from rllm_core.data.messages import Message, Tool
from rllm_core.errors import ConfigError, RolloutError, did_you_mean
from rllm_core.notices import one_line, warn_once
from rllm_core.rollout.options import RendererParams
from rllm_core.rollout.template_renderer import TemplateRenderer
from rllm_renderers.library_renderer import LibraryRenderer
from rllm_renderers.options import RenderersParams


def make_known(setup: RendererSetup, params: RendererParams) -> Renderer | None:
    """Make the library's renderer. None if the library does not support the model."""
    family = family_of(setup)
    return None if family is None else _make_equal(setup, family, RenderersParams(control_tokens=params.control_tokens))


def make_renderers(setup: RendererSetup, params: RenderersParams) -> Renderer:
    """Make the library's renderer.

    Raises:
        ConfigError: no family is set and none matches the model, or the model's tokenizer does not fit the family.
    """
    if params.config is not None:
        return _make(setup, params.config, params)
    family = family_of(setup)
    if family is None:
        raise ConfigError(
            "unknown-choice",
            f"Renderer 'renderers' does not support the model {setup.name!r}: no family writes the same tokens as its "
            "chat template.",
            "Set its family, for example rllm.renderer=renderers:qwen3, or use rllm.renderer=auto.",
        )
    return _make_equal(setup, family, params)


def make_alternatives(setup: RendererSetup) -> Iterator[tuple[str, Renderer]]:
    """Yield the template's renderer and those families with the same prompts, each with its name in
    ``rllm.renderer``."""
    yield "template", TemplateRenderer(setup.tokenizer, setup.stop_ids, setup.template_options)
    for family in families_with_same_prompts(setup):
        yield f"renderers:{family}", _make(setup, family, RenderersParams())


def check_params(params: RenderersParams) -> None:
    """Raise ConfigError if the library does not have the family, or the family does not have the options."""
    if params.config is None and params.options:
        raise ConfigError(
            "missing-key",
            "rllm.renderer.options is set, but rllm.renderer.config is not.",
            "Set rllm.renderer.config to the family of the options.",
        )
    if params.config is not None:
        _config(params.config, params.options)


def family_of(setup: RendererSetup) -> str | None:
    """Return the family that writes the same tokens as the model's chat template. None if no family does.

    If the tokenizer has no chat template, return the family for the model's Hub name.
    """
    names = (setup.name, getattr(setup.tokenizer, "name_or_path", ""))
    named = next((base.MODEL_RENDERER_MAP[name] for name in names if name in base.MODEL_RENDERER_MAP), None)
    if not getattr(setup.tokenizer, "chat_template", None):
        return named
    found = family_of_template(setup, first=named)
    if named is not None and found != named:
        warn_once(
            f"The library renderers has family {named!r} for {setup.name}, but it writes other tokens than the model's "
            f"chat template. The run uses {f'family {found!r}' if found else 'the chat template'}. To use the family, "
            f"set rllm.renderer=renderers:{named}."
        )
    return found


def _make_equal(setup: RendererSetup, family: str, params: RenderersParams) -> Renderer:
    """Make the renderer of a family that was found by its equal prompts. The chat template itself writes them."""
    is_compared = bool(getattr(setup.tokenizer, "chat_template", None)) and family != HARMONY
    return _make(setup, family, params, prompts_of_template=is_compared)


def _make(setup: RendererSetup, family: str, params: RenderersParams, *, prompts_of_template: bool = False) -> Renderer:
    config = _config(family, params.options)
    try:
        made = base.create_renderer(setup.tokenizer, config, chat_template_kwargs=dict(setup.template_options) or None)
    except Exception as error:
        raise ConfigError(
            "renderer-not-loadable",
            f"Renderer {family!r} of the library renderers cannot be made for {setup.name!r}: {one_line(str(error))}.",
            "Set a different family, or rllm.renderer=template. If a download failed, set TIKTOKEN_ENCODINGS_BASE to "
            "a directory with the vocabulary file.",
        ) from error
    return LibraryRenderer(made, setup, params.control_tokens, prompts_of_template=prompts_of_template)


def _config(family: str, options: dict[str, Any]) -> configs.BaseRendererConfig:
    base._populate_registry()
    known = [name for name in base.RENDERER_REGISTRY if name != "default"]
    if family not in known:
        raise ConfigError(
            "unknown-choice",
            f"The library renderers has no family {family!r}.",
            did_you_mean(family, known) or f"Its families: {', '.join(sorted(known))}.",
        )
    try:
        return configs._config_class_for(family)(**options)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(
            "renderer-options-rejected",
            f"rllm.renderer.options of family {family!r}: {problems}.",
            "Change these keys of rllm.renderer.options, or remove them.",
        ) from error


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
