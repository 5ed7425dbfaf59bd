"""The tokens of an example: each trained part, and the tokens before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rllm.rows.example import Conversation, PlainText
from rllm.rows.hidden_parts import check_visible_parts, form_of, hidden_part
from rllm.rows.problem import RowError
from rllm.rows.row_limit import RowParams
from rllm_core.contracts.renderer import PlainTextRenderer, Renderer
from rllm_core.data.messages import Message, Tool, read_text
from rllm_core.errors import ConfigError, RolloutError
from rllm_core.rollout.template_renderer import REASONING_MARKS


class ExamplesParams(RowParams):
    """Options of the stages ``examples`` and ``preferences``."""

    train_on: Literal["assistant", "last", "all"] = "assistant"
    """Trained tokens of a row. `assistant`: all assistant messages, or the completion. `last`: the last assistant
    message. `all`: every token."""


Ids = NDArray[np.int32]
MAX_SHOWN = 12
"""Maximum number of tokens in an error."""
CHANNEL = ("<|channel|>analysis<|message|>", "<|end|>")
"""The strings around the reasoning of gpt-oss, which are several tokens."""
SUFFIX = "x"
"""Text that is added to a response. Tokens that it does not change come after the response's own text."""
SAMPLE: Sequence[Message] = ({"role": "user", "content": "."}, {"role": "assistant", "content": "."})
"""A conversation whose end is rendered once, because most templates end all responses with the same tokens."""


@dataclass(frozen=True, eq=False)
class Turn:
    """A part of an example that is trained, like one model call of a rollout."""

    prompt_ids: Ids
    """(n,) all tokens before it."""
    response_ids: Ids
    """(m,) the trained tokens."""
    text: str
    messages: Sequence[Message] = field(default=())
    """The messages since the trained turn before it."""


def make_turns(example: Conversation | PlainText, renderer: Renderer, params: ExamplesParams) -> list[Turn]:
    """Return the trained turns of an example, without a limit of their length.

    Raises:
        RowError: the renderer drops a part of the example, or does not write a response after its prompt.
        ConfigError: the rendered example does not show which tokens are trained.
    """
    if isinstance(example, PlainText):
        turns = [_plain_turn(example, renderer)]
    else:
        try:
            turns = list(_assistant_turns(example, renderer))
        except RolloutError as error:
            raise RowError("messages", f"cannot be rendered: {error.message.rstrip('.')}", error.hint) from error
    if isinstance(example, Conversation) and params.train_on == "all" and (weighted := example.untrained - {0}):
        raise RowError(
            example.place_of(min(weighted)), "has a weight of 0, and every token is trained", "Remove --train-on all."
        )
    if params.train_on == "last":
        if not isinstance(example, PlainText) and len(example.messages) - 1 in example.untrained:
            raise RowError(
                example.column, "has the weight 0 in its last assistant message", "Remove --train-on last, or the row."
            )
        turns = turns[-1:]
    elif params.train_on == "all":
        last = turns[-1]
        tokens = np.concatenate((last.prompt_ids, last.response_ids))
        # No token predicts the first one.
        turns = [Turn(tokens[:1], tokens[1:], last.text, [each for turn in turns for each in turn.messages])]
    if turns and not len(turns[0].prompt_ids):
        raise RowError("messages", "has no token before its first response", "Write text in its first user message.")
    return turns


def _assistant_turns(example: Conversation, renderer: Renderer) -> Iterator[Turn]:
    """Yield each assistant message after the tokens that the model gets as its prompt in a rollout.

    If the template rewrites earlier messages in later prompts, turns do not extend each other. Each then becomes its
    own row of the batch, as in rollouts.
    """
    read = 0
    check_visible_parts(example.messages, example.tools, renderer, example.place_of)
    for place, message in enumerate(example.messages):
        if message["role"] != "assistant" or place < example.trained_from or place in example.untrained:
            continue
        prompt = renderer.prompt(example.messages[:place], example.tools)
        whole = renderer.prompt(example.messages[: place + 1], example.tools)
        found = find_response_start(prompt, whole, renderer)
        if found is None:
            problem, hint = explain_mismatch(prompt, whole, renderer, message)
            raise RowError(example.place_of(place), problem, hint)
        first, start = found
        response = response_tokens(renderer, example.messages[: place + 1], example.tools, start)
        if response is None:
            raise ConfigError(
                "unsupported-chat-template",
                f"The chat template writes no token that ends a response after {read_text(message)!r:.60}.",
                "Set the generation_config's eos_token_id to the token that the template writes, or add it there.",
            )
        response = np.concatenate((first, response)) if first.size else response
        if (inside := response[:-1][np.isin(response[:-1], [*renderer.stop_ids])]).size:
            token = renderer.token_texts(inside[:1])[0]
            problem = f"has the stop token {token!r} in its text, and a response ends with its first stop token"
            hint = "Remove it from the text, or set rllm.renderer.control_tokens=plain."
            raise RowError(example.place_of(place), problem, hint)
        yield Turn(prompt, response, read_text(message), example.messages[read:place])
        read = place + 1


def _plain_turn(example: PlainText, renderer: Renderer) -> Turn:
    """Return text as TRL tokenizes it: with the tokenizer's special tokens, and with the end-of-text token.

    If the text already has these tokens, because a template rendered it, they are not added again.
    """
    if not isinstance(renderer, PlainTextRenderer):
        raise ConfigError(
            "renderer-without-tokenizer",
            "The run's renderer cannot encode text without a chat template.",
            "Set rllm.renderer=template, or use the column `messages`.",
        )
    ids = _encode_with_end(example.prompt + example.completion, renderer)
    start = 1
    if example.prompt:
        # Tokens may merge at the border. The completion then starts with the merged token.
        start = max(1, _count_equal(renderer.encode(example.prompt), ids))
    return Turn(ids[:start], ids[start:], example.completion, [{"role": "text", "content": example.prompt}])


def _encode_with_end(text: str, renderer: PlainTextRenderer) -> Ids:
    """Return the tokens, (n,) int32, of a text that ends with a stop token, and with nothing after it."""
    end = getattr(getattr(renderer, "tokenizer", None), "eos_token_id", None)
    stops = renderer.stop_ids if end is None else renderer.stop_ids | {end}
    ids = renderer.encode(text.rstrip())
    if text[-1:].isspace() and not np.isin(ids[-1:], [*stops]).any():
        ids = renderer.encode(text)
    if len(ids) > 1 and ids[-1] == ids[-2] == end:
        return ids[:-1]  # The tokenizer adds the token to each text.
    return ids if end is None or np.isin(ids[-1:], [*stops]).any() else np.append(ids, np.int32(end))


def find_response_start(prompt: Ids, whole: Ids, renderer: Renderer) -> tuple[Ids, int] | None:
    """Return the first tokens, (n,) int32, of a response, and the place in `whole` of the token after them.

    Usually `whole` begins with the tokens of the prompt, and the first tokens are empty. If a token of `whole` begins
    in the prompt, its text after the prompt is encoded again. For example, Qwen3.5 ends its prompt with ``<think>`` and
    a line break, and writes empty reasoning as ``<think>``, one token with two line breaks, and ``</think>``.

    Args:
        prompt: tokens, (m,), of the conversation up to the response.
        whole: tokens, (k,), of the conversation with the response.
        renderer: the renderer of both.

    Returns:
        None if the text of `whole` does not begin with the text of the prompt.
    """
    equal = _count_equal(prompt, whole)
    if equal == min(len(prompt), len(whole)):
        return (whole[:0], len(prompt)) if equal == len(prompt) else None
    tokenizer: Any = getattr(renderer, "tokenizer", None)
    if tokenizer is None:
        return None

    def text(tokens: Ids) -> str:
        return str(tokenizer.decode(tokens.tolist(), skip_special_tokens=False))

    shown = text(prompt)
    if not text(whole).startswith(shown):
        return None
    ends = range(equal + 1, len(whole) + 1)
    end = next((end for end in ends if len(text(whole[:end])) >= len(shown)), None)
    if end is None:
        return None
    first = np.array(tokenizer.encode(text(whole[:end])[len(shown) :], add_special_tokens=False), np.int32)
    is_same = text(np.concatenate((prompt, first, whole[end:]))) == text(whole)
    return (first, end) if is_same else None


def explain_mismatch(prompt: Ids, whole: Ids, renderer: Renderer, message: Message) -> tuple[str, str]:
    """Return why a message is not a response to its prompt, and what to change.

    Args:
        prompt: tokens, (m,), of the conversation up to the response.
        whole: tokens, (k,), of the conversation with the response.
        renderer: the renderer of both.
        message: the response.
    """
    start = _count_equal(prompt, whole)
    has, writes = ("".join(renderer.token_texts(tokens[start : start + MAX_SHOWN])) for tokens in (prompt, whole))
    problem = (
        f"does not continue its prompt. The prompt has {has!r}, and with the response the template writes {writes!r}"
    )
    if message.get("reasoning_content"):
        return problem, "Remove the reasoning, or remove rllm.disable_thinking if it is set."
    if not _opens_reasoning("".join(renderer.token_texts(prompt[-MAX_SHOWN:]))):
        return problem, "Set a different rllm.renderer, or remove white space from the message's start."
    thinking = form_of({**message, "reasoning_content": "."}, has_tools=False)
    if hidden_part(thinking, renderer) is None:
        return problem, "Add `reasoning_content`, or set rllm.disable_thinking=true if no row has reasoning."
    return problem, "Write the row as text, with the columns `prompt` and `completion`."


def _count_equal(one: Ids, other: Ids) -> int:
    """Return the number of equal tokens at the start of both."""
    both = min(len(one), len(other))
    return int(np.argmin(np.append(one[:both] == other[:both], False)))


def _opens_reasoning(end_of_prompt: str) -> bool:
    marks = (*((start, end) for start, end, _ in REASONING_MARKS), CHANNEL)
    return any(start in end_of_prompt and end not in end_of_prompt.rpartition(start)[2] for start, end in marks)


def response_tokens(renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool], start: int) -> Ids | None:
    """Return the tokens, (n,) int32, of the last message up to its stop token. None if the template writes none.

    Templates write more after a response: a line break, or the header of the next turn. That header is a stop token of
    some models, and a response can have a stop token in its text.

    Args:
        renderer: the renderer of the model.
        messages: a conversation that ends with an assistant message.
        tools: the tools of the conversation.
        start: number of tokens before the response.
    """
    response = renderer.prompt(messages, tools)[start:]
    for shown in [messages] if messages[-1].get("tool_calls") else [SAMPLE, messages]:
        after = _after_text(renderer, shown, tools)
        if after is not None and np.array_equal(response[max(len(response) - len(after), 0) :], after):
            ending = _cut_after_stop(renderer, after)
            if ending is None:
                # Some models end a response with the header of the next turn, for example `<|user|>`.
                ending = _cut_after_stop(renderer, _after_text(renderer, shown, tools, [_next_message(shown[-1])]))
            return None if ending is None else np.concatenate((response[: len(response) - len(after)], ending))
    return _cut_after_stop(renderer, response)


def _after_text(
    renderer: Renderer, messages: Sequence[Message], tools: Sequence[Tool], following: Sequence[Message] = ()
) -> Ids | None:
    """Return the tokens after the text of the last of `messages`.

    Return None if the template does not show this text, or does not support the `following` messages.
    """
    longer = {**messages[-1], "content": read_text(messages[-1]) + SUFFIX}
    try:
        whole, other = (
            renderer.prompt([*messages[:-1], each, *following], tools)[::-1] for each in (messages[-1], longer)
        )
    except RolloutError:
        return None
    equal = _count_equal(whole, other)
    return whole[:equal][::-1] if equal < min(len(whole), len(other)) else None


def _cut_after_stop(renderer: Renderer, tokens: Ids | None) -> Ids | None:
    if tokens is None:
        return None
    stops = np.flatnonzero(np.isin(tokens, [*renderer.stop_ids]))
    return tokens[: int(stops[0]) + 1] if stops.size else None


def _next_message(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return {"role": "user", "content": "."}
    return {"role": "tool", "content": ".", "tool_call_id": calls[0].get("id", "")}
