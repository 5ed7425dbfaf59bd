"""Functions for formats whose files contain the rows of a step: a prompt, a response and rewards per row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rllm_record.interchange.drafts import (
    AFTER,
    EpisodeDraft,
    JsonData,
    TrajectoryDraft,
    as_json_data,
    split_calls,
    text_of,
)


class PromptNames:
    """Names of tasks that have none. Rows with the same text in their prompts are rollouts of a task."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def name_of(self, prompt: Iterable[JsonData]) -> str:
        """Return ``prompt-N``. N counts different prompts in the order in which they are first seen, from 0."""
        text = "\n".join(text_of(message) for message in prompt)
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
        return f"prompt-{self._numbers.setdefault(digest, len(self._numbers))}"


def row_draft(
    step: int, prompt: Any, response: Any, rewards: Mapping[str, float], extra: JsonData, names: PromptNames
) -> EpisodeDraft:
    """Return the draft of a row. Prompt and response are text or messages, and the reward is the sum of `rewards`.

    Args:
        step: training step.
        prompt: messages before the response.
        response: response. Each assistant message is a model call.
        rewards: rewards by name.
        extra: other values of the row, for `info`. The value ``acc`` is true if the response is correct.
        names: names of the file's prompts.
    """
    before = _messages(prompt, "user")
    after = _messages(response, "assistant")
    calls, rest = split_calls(
        [*((each, False) for each in before), *((each, each.get("role") == "assistant") for each in after)]
    )
    reward = sum(rewards.values()) if rewards else None
    info: JsonData = {"reward_components": dict(rewards)} if len(rewards) > 1 else {}
    info |= {"row": as_json_data(extra)} if extra else {}
    info |= {AFTER: rest} if rest else {}
    trajectory = TrajectoryDraft({"name": "agent", "reward": reward, "info": info}, calls)
    solved = extra.get("acc", reward is not None and reward > 0)
    return EpisodeDraft(names.name_of(before), {"step": step, "is_correct": bool(solved)}, [trajectory])


def _messages(value: Any, role: str) -> list[JsonData]:
    return [{"role": role, "content": value}] if isinstance(value, str) else as_json_data(value or [])


def step_files(path: Path, pattern: str) -> list[Path]:
    """Return the files of a directory in the order of their steps, or the file itself."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob(pattern), key=lambda file: (len(file.name), file.name))
    return found or sorted(path.glob(f"completions/{pattern}"))


def is_number(value: Any) -> bool:
    """True if this is a number, and not a boolean. It may be NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool)
