"""The tokens of an example: each trained part, and the tokens before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm.supervised.options import ExamplesParams
from rllm.supervised.rows import Conversation, PlainText
from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message, read_text
from rllm_core.errors import ConfigError

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
        ConfigError: the rendered example does not show which tokens are trained.
    """
    if isinstance(example, PlainText):
        turns = [_plain_turn(example, renderer)]
    else:
        turns = list(_assistant_turns(example, renderer))
    if params.train_on == "last":
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
    for place, message in enumerate(example.messages):
        if message["role"] != "assistant" or place < example.trained_from or place in example.untrained:
            continue
        prompt = renderer.prompt(example.messages[:place], example.tools)
        whole = renderer.prompt(example.messages[: place + 1], example.tools)
        if len(whole) < len(prompt) or (whole[: len(prompt)] != prompt).any():
            raise ConfigError(
                "unsupported-chat-template",
                f"The chat template writes the prompt before {read_text(message)!r:.60} differently when this message "
                "follows.",
                "Set rllm.renderer=auto (pip install rllm-renderers), or remove white space from the message's start.",
            )
        stops = np.flatnonzero(np.isin(whole[len(prompt) :], [*renderer.stop_ids]))
        if not stops.size:
            raise ConfigError(
                "unsupported-chat-template",
                f"The chat template writes no token that ends a response after {read_text(message)!r:.60}.",
                "Set the generation_config's eos_token_id to the token that the template writes, or add it there.",
            )
        # After its stop token, the template may write more. The model never samples that.
        end = len(prompt) + int(stops[-1]) + 1
        yield Turn(prompt, whole[len(prompt) : end], read_text(message), example.messages[read:place])
        read = place + 1


def _plain_turn(example: PlainText, renderer: Renderer) -> Turn:
    """Return text as TRL tokenizes it: with the tokenizer's special tokens, and with the end-of-text token."""
    tokenizer: Any = getattr(renderer, "tokenizer", None)
    if tokenizer is None:
        raise ConfigError(
            "renderer-without-tokenizer",
            "The run's renderer cannot encode text without a chat template.",
            "Set rllm.renderer=template, or use the column `messages`.",
        )
    text = example.prompt + example.completion
    tokens = list(tokenizer.encode(text, add_special_tokens=True))
    end = getattr(tokenizer, "eos_token_id", None)
    if end is not None and tokens[-1:] != [end]:
        tokens.append(end)
    start = 1
    if example.prompt:
        before = list(tokenizer.encode(example.prompt, add_special_tokens=True))
        # Tokens may merge at the border. The completion then starts with the merged token.
        same = (at for at, (one, other) in enumerate(zip(before, tokens, strict=False)) if one != other)
        start = max(1, next(same, min(len(before), len(tokens))))
    ids = np.array(tokens, np.int32)
    return Turn(ids[:start], ids[start:], example.completion, [{"role": "text", "content": example.prompt}])
