"""An agent of the OpenAI Agents SDK. It reads a task from standard input and prints its answer."""

import json
import sys

from agents import Agent, Runner, function_tool


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


task = json.load(sys.stdin)
agent = Agent(name="Calculator", instructions="Use the tool. Answer with the number alone.", tools=[multiply])
answer = Runner.run_sync(agent, task["question"]).final_output
json.dump({"answer": answer}, sys.stdout)
