"""pydantic-ai with the task's model."""

import asyncio
import json
import sys

from pydantic_ai import Agent

task = json.load(sys.stdin)
agent = Agent(task["model"], instructions="Use the tool.")


@agent.tool_plain
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


async def read(context, events):
    async for _ in events:
        pass


# With a handler of events it streams every call of the model.
handler = read if task["streamed"] else None
result = asyncio.run(agent.run(task["question"], event_stream_handler=handler))
json.dump({"answer": result.output}, sys.stdout)
