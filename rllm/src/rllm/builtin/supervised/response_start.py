"""The start of a response in a rendered conversation: the tokens after the prompt that the model gets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rllm.rows.hidden_parts import form_of, hidden_part
from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message
from rllm_core.rollout.template_renderer import REASONING_MARKS

Ids = NDArray[np.int32]
SHOWN = 12
"""Maximum number of tokens in an error."""
CHANNEL = ("<|channel|>analysis<|message|>", "<|end|>")
"""The strings around the reasoning of gpt-oss, which are several tokens."""


def start_after(prompt: Ids, whole: Ids, renderer: Renderer) -> tuple[Ids, int] | None:
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
    both = min(len(prompt), len(whole))
    differs = np.flatnonzero(prompt[:both] != whole[:both])
    if not differs.size:
        return (whole[:0], len(prompt)) if both == len(prompt) else None
    tokenizer: Any = getattr(renderer, "tokenizer", None)
    if tokenizer is None:
        return None

    def text(tokens: Ids) -> str:
        return str(tokenizer.decode(tokens.tolist(), skip_special_tokens=False))

    shown = text(prompt)
    if not text(whole).startswith(shown):
        return None
    ends = range(int(differs[0]) + 1, len(whole) + 1)
    end = next((end for end in ends if len(text(whole[:end])) >= len(shown)), None)
    if end is None:
        return None
    begun = np.array(tokenizer.encode(text(whole[:end])[len(shown) :], add_special_tokens=False), np.int32)
    is_same = text(np.concatenate((prompt, begun, whole[end:]))) == text(whole)
    return (begun, end) if is_same else None


def explain_mismatch(prompt: Ids, whole: Ids, renderer: Renderer, message: Message) -> tuple[str, str]:
    """Return why a message is not a response to its prompt, and what to change.

    Args:
        prompt: tokens, (m,), of the conversation up to the response.
        whole: tokens, (k,), of the conversation with the response.
        renderer: the renderer of both.
        message: the response.
    """
    both = min(len(prompt), len(whole))
    start = int(np.argmin(np.append(prompt[:both] == whole[:both], False)))
    has, writes = ("".join(renderer.token_texts(tokens[start : start + SHOWN])) for tokens in (prompt, whole))
    problem = (
        f"does not continue its prompt. The prompt has {has!r}, and with the response the template writes {writes!r}"
    )
    if message.get("reasoning_content"):
        return problem, "Remove the reasoning, or remove rllm.disable_thinking if it is set."
    if not _opens_reasoning("".join(renderer.token_texts(prompt[-SHOWN:]))):
        return problem, "Set a different rllm.renderer, or remove white space from the message's start."
    thinking = form_of({**message, "reasoning_content": "."}, has_tools=False)
    if hidden_part(thinking, renderer) is None:
        return problem, "Add `reasoning_content`, or set rllm.disable_thinking=true if no row has reasoning."
    return problem, "Write the row as text, with the columns `prompt` and `completion`."


def _opens_reasoning(end_of_prompt: str) -> bool:
    marks = (*((start, end) for start, end, _ in REASONING_MARKS), CHANNEL)
    return any(start in end_of_prompt and end not in end_of_prompt.rpartition(start)[2] for start, end in marks)
