"""The model of the tests, for mockllm of inspect and for an engine. Some responses are wrong, so rewards differ."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from inspect_ai.model import ModelOutput, ModelUsage

WRONG = 4
"""The model does not know this number times two."""
CALL = re.compile(r"<call>(.*)</call>")


def say(last: str, turns: int) -> str:
    """Return the response to the last message, after `turns` responses."""
    if "[BEGIN DATA]" in last or "[Submission]" in last:
        return grade(last)
    if found := re.search(r"What is (\d+) \+", last):
        return str(2 * int(found[1])) if int(found[1]) != WRONG else "seven"
    if "Which letter" in last:
        return "ANSWER: B"
    if found := re.search(r"Which hour is it in (\w+)", last):
        return f'<call>{{"name": "clock", "arguments": {{"city": "{found[1]}"}}}}</call>'
    if found := re.search(r"Say (\w+)\.", last):
        return f"{found[1]}!"
    if last in ("Guess my number.", "Higher."):
        return str(turns + 1)
    return last


def grade(question: str) -> str:
    """Return a grade: one is correct, two is partly correct, and odd gets no grade."""
    return "GRADE: C" if "one!" in question else "GRADE: P" if "two!" in question else "I cannot tell."


def say_to_prompt(prompt: str) -> str:
    """Return the response to a prompt in the form of `ToolTokenizer`."""
    last = re.split(r"<[ut]>", prompt.removesuffix("<a>"))[-1]
    return say(last, prompt.count("<a>") - 1)


def mock_outputs() -> Callable[..., ModelOutput]:
    """Return the argument `custom_outputs` of mockllm that gives the same responses."""

    def answer(messages: list[Any], tools: Any, tool_choice: Any, config: Any) -> ModelOutput:
        text = say(messages[-1].text, sum(message.role == "assistant" for message in messages))
        if found := CALL.search(text):
            function = json.loads(found[1])
            output = ModelOutput.for_tool_call("mockllm", function["name"], function["arguments"])
        else:
            output = ModelOutput.from_content("mockllm", text)
        # mockllm would download a tokenizer to count tokens.
        output.usage = ModelUsage()
        return output

    return answer
