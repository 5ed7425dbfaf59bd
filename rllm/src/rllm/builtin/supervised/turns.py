"""The tokens of an example: each trained part, and the tokens before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rllm.builtin.supervised.options import ExamplesParams
from rllm.builtin.supervised.response_end import response_of
from rllm.builtin.supervised.response_start import explain_mismatch, start_after
from rllm.rows.example import Conversation, PlainText
from rllm.rows.hidden_parts import check_shown
from rllm.rows.problem import RowError
from rllm_core.contracts.renderer import PlainTextRenderer, Renderer
from rllm_core.data.messages import Message, read_text
from rllm_core.errors import ConfigError, RolloutError

Ids = NDArray[np.int32]


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
    return turns


def _assistant_turns(example: Conversation, renderer: Renderer) -> Iterator[Turn]:
    """Yield each assistant message after the tokens that the model gets as its prompt in a rollout.

    If the template rewrites earlier messages in later prompts, turns do not extend each other. Each then becomes its
    own row of the batch, as in rollouts.
    """
    read = 0
    check_shown(example.messages, example.tools, renderer, example.place_of)
    for place, message in enumerate(example.messages):
        if message["role"] != "assistant" or place < example.trained_from or place in example.untrained:
            continue
        prompt = renderer.prompt(example.messages[:place], example.tools)
        whole = renderer.prompt(example.messages[: place + 1], example.tools)
        begun = start_after(prompt, whole, renderer)
        if begun is None:
            problem, hint = explain_mismatch(prompt, whole, renderer, message)
            raise RowError(example.place_of(place), problem, hint)
        first, start = begun
        response = response_of(renderer, example.messages[: place + 1], example.tools, start)
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
    ids = _ended(example.prompt + example.completion, renderer)
    start = 1
    if example.prompt:
        before = renderer.encode(example.prompt)
        most = min(len(before), len(ids))
        # Tokens may merge at the border. The completion then starts with the merged token.
        different = np.flatnonzero(before[:most] != ids[:most])
        start = max(1, int(different[0]) if different.size else most)
    return Turn(ids[:start], ids[start:], example.completion, [{"role": "text", "content": example.prompt}])


def _ended(text: str, renderer: PlainTextRenderer) -> Ids:
    """Return the tokens, (n,) int32, of a text that ends with a stop token, and with nothing after it."""
    end = getattr(getattr(renderer, "tokenizer", None), "eos_token_id", None)
    stops = renderer.stop_ids if end is None else renderer.stop_ids | {end}
    ids = renderer.encode(text.rstrip())
    if text[-1:].isspace() and not np.isin(ids[-1:], [*stops]).any():
        ids = renderer.encode(text)
    if len(ids) > 1 and ids[-1] == ids[-2] == end:
        return ids[:-1]  # The tokenizer adds the token to each text.
    return ids if end is None or np.isin(ids[-1:], [*stops]).any() else np.append(ids, np.int32(end))
