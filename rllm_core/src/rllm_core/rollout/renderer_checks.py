"""What a run asks of its renderer, tried on a conversation of our own when the renderer is made."""

from __future__ import annotations

from typing import Any

from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message
from rllm_core.errors import ConfigError, RolloutError

USER: Message = {"role": "user", "content": "one plus one?"}
NEXT: Message = {"role": "user", "content": "and plus one?"}


def check_reasoning_is_kept(renderer: Renderer, name: str) -> None:
    """Refuse ``rllm.accumulate_reasoning`` where later prompts leave the model's thoughts out all the same.

    Raises:
        ConfigError: the renderer renders conversations anew, and hides earlier thoughts then.
    """
    try:
        first = renderer.prompt([USER])
        replies = [renderer.reply_ids(text) for text in ("two", "<think>one more</think>two")]
        if all(renderer.bridge(first, reply, [NEXT]) is not None for reply in replies):
            return
        one, other = (renderer.prompt([USER, _thinking(thought), NEXT]) for thought in ("abc", "xyz"))
    except RolloutError:
        return  # A template that refuses such messages hides nothing; the run meets its words where it needs them.
    if one.tolist() == other.tolist():
        raise ConfigError(
            f"rllm.accumulate_reasoning is true, and renderer {name!r} renders the conversation of this model anew for "
            "each turn, without what the model thought before: the key has no effect.",
            "Set rllm.accumulate_reasoning=false, or choose another renderer (rllm.renderer=template keeps thoughts).",
        )


def _thinking(thought: str) -> dict[str, Any]:
    return {"role": "assistant", "content": "two", "reasoning_content": thought}
