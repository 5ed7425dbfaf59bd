"""`judge`: a model with an API like OpenAI's scores a response."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from rllm.builtin.tasks.answers import NoAnswerError, answers_in, as_text
from rllm.builtin.tasks.chat_client import ChatClient, ChatError
from rllm.builtin.tasks.judge_scores import PLACES, JudgeParams, UnreadableError, read_score
from rllm_core.contracts.reward import Rollout, Score
from rllm_core.data.messages import read_text
from rllm_core.rollout.calls import call

SHOWN = 200
"""Characters of the judge's words that a message shows."""


class Judge:
    """A reward that requests a score for each response, `concurrency` at once. Without a score, the reward is missing,
    and its feedback has the reason."""

    def __init__(self, params: JudgeParams) -> None:
        self._params = params
        self._client = ChatClient(
            url=params.url,
            api_key_env=params.api_key_env,
            timeout=params.timeout,
            retries=params.retries,
            backoff=params.backoff,
        )
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        """Semaphores by event loop, because a semaphore belongs to the event loop in which it was first awaited."""

    async def __call__(self, rollout: Rollout) -> Score:
        params = self._params
        try:
            messages = [{"role": "user", "content": self._build_prompt(rollout)}]
            if params.system_prompt is not None:
                messages.insert(0, {"role": "system", "content": params.system_prompt})
            async with self._place():
                said = await self._client.ask(params.model, messages, params.body)
        except NoAnswerError as error:
            return Score(value=None, feedback=str(error))
        except ChatError as error:
            return Score(value=None, feedback=f"the judge at {params.url}: {error}")
        try:
            # A pattern waits for a process.
            value, extracted = await call(read_score, said, params, blocking=params.read == "regex")
        except UnreadableError as error:
            return Score(value=None, feedback=f"the judge's answer is no score: {error}: {said!r:.{SHOWN}}")
        return Score(value=value, correct=self._solved(value), extracted=extracted, feedback=said)

    def _place(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop not in self._places:
            self._places[loop] = asyncio.Semaphore(self._params.concurrency)
        return self._places[loop]

    def _build_prompt(self, rollout: Rollout) -> str:
        """Return the prompt for the judge. A response that looks like a placeholder stays unchanged in it."""
        texts = {"response": rollout.response.content, "question": _question(rollout)}
        if self._params.asks_for_answer:
            texts["answer"] = " or ".join(as_text(each) for each in answers_in(rollout.data, self._params.column))
        return PLACES.sub(lambda match: texts[match[1]], self._params.prompt)

    def _solved(self, value: float) -> bool | None:
        if self._params.solved_from is not None:
            return value >= self._params.solved_from
        return value == 1.0 if self._params.read == "yes_no" else None


def _question(rollout: Rollout) -> str:
    """Return the messages before the response. A single message is its text, several messages have their roles."""
    before = [message for message in rollout.messages[:-1] if message["role"] != "system"]
    if len(before) == 1:
        return read_text(before[0])
    return "\n\n".join(f"{message['role']}: {read_text(message)}" for message in before)
