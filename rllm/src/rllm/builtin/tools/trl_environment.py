"""`trl`: classes written for the `environment_factory` of TRL's GRPOTrainer (TRL 1.16)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field

from rllm.builtin.tasks.question import Question, QuestionParams, check_question
from rllm.builtin.tools.toolbox import load_function, runnable
from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.data.messages import Message
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError


class TrlEnvironmentParams(QuestionParams):
    """Options of ``trl``."""

    factory: str = Field(min_length=1)
    """Class for TRL's `environment_factory`, as FILE.py:CLASS. Its public methods are the tools."""


KEY = "rllm.env.env_args.factory"
RESET, REWARD = "reset", "get_reward"


class TrlEnvironment(Environment):
    """Asks a question of a dataset. The class's methods are tools, and its `get_reward` scores the rollout."""

    def __init__(self, params: TrlEnvironmentParams) -> None:
        self._question = Question(params)
        self._instance = load_function(params.factory, KEY)()

    @classmethod
    def tasks(cls, split: Split, params: TrlEnvironmentParams) -> Sequence[Task]:
        """Return no tasks for validation. Tasks come from a dataset."""
        return Question.tasks(split, params)

    def reset(self, task: Mapping[str, Any]) -> str | Sequence[Message]:
        """Return the prompt. Text that the class's `reset` returns is appended to the last message."""
        prompt = self._question.reset(task)
        text = self._instance.reset(**task)
        if text is None:
            return prompt
        if not isinstance(text, str):
            raise TypeError(f"{RESET}() of {type(self._instance).__name__} returned {text!r:.80}, not text or None")
        if isinstance(prompt, str):
            return prompt + text
        *earlier, last = prompt
        content: Any = last["content"] or ""
        return [*earlier, {**last, "content": content + (text if isinstance(content, str) else [_part(text)])}]

    def tools(self, task: Mapping[str, Any]) -> Sequence[Callable[..., Any]]:
        return _find_tools(self._instance)

    async def step(self, action: str) -> Outcome:
        """Return the reward of `get_reward`. It is 0 if the class has no such method, or if the method returns None."""
        score = getattr(self._instance, REWARD, None)
        if score is None:
            return Outcome(done=True)
        reward = await score() if inspect.iscoroutinefunction(score) else await asyncio.to_thread(score)
        return Outcome(reward=0.0 if reward is None else float(reward), done=True)


def check_factory(params: TrlEnvironmentParams) -> None:
    """Make one instance.

    Raises:
        ConfigError: the file or class is missing, fails, or has no `reset`, or a method cannot be described as a tool.
    """
    check_question(params)
    factory = load_function(params.factory, KEY)
    try:
        instance = factory()
    except Exception as error:
        raise ConfigError(
            "environment-options-rejected",
            f"{params.factory} fails without arguments: {type(error).__name__}: {error}.",
            "TRL and rllm call the class without arguments. Give its arguments default values.",
        ) from error
    if not callable(getattr(instance, RESET, None)):
        raise ConfigError(
            "environment-options-rejected",
            f"{params.factory} has no method {RESET!r}.",
            f"Add `def {RESET}(self, **row)`, which starts a rollout and may return text for the prompt.",
        )
    for tool in _find_tools(instance):
        runnable(tool)


def _find_tools(instance: Any) -> list[Callable[..., Any]]:
    """Return the public methods of the instance's class, bound, without `reset` and `get_reward`."""
    methods = inspect.getmembers(type(instance), inspect.isfunction)
    return [getattr(instance, name) for name, _ in methods if name not in (RESET, REWARD) and not name.startswith("_")]


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
