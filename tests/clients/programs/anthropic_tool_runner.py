"""anthropic-python's own loop of tools."""

import json
import sys

from anthropic import Anthropic, beta_tool


@beta_tool
def multiply(a: int, b: int) -> str:
    """Multiply two whole numbers.

    Args:
        a: one of them.
        b: the other.
    """
    return str(a * b)


task = json.load(sys.stdin)
message = (
    Anthropic()
    .beta.messages.tool_runner(
        model="claude-sonnet-4-5",
        max_tokens=200,
        tools=[multiply],
        messages=[{"role": "user", "content": task["question"]}],
    )
    .until_done()
)
json.dump({"answer": message.content[0].text}, sys.stdout)
