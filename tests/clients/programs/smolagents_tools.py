"""smolagents: an agent that calls tools."""

import json
import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers.

    Args:
        a: One of them.
        b: The other.
    """
    return a * b


task = json.load(sys.stdin)
agent = ToolCallingAgent(
    tools=[multiply], model=OpenAIModel("gpt-4o"), stream_outputs=task["streamed"], verbosity_level=0, max_steps=4
)
answer = agent.run(task["question"])
# Its streamed console output does not end with a newline.
sys.stdout.write("\n" + json.dumps({"answer": answer}))
