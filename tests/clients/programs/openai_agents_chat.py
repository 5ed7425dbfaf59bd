"""openai-agents, with chat completions."""

import json
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


set_default_openai_api("chat_completions")
task = json.load(sys.stdin)
agent = Agent(name="Calculator", instructions="Use the tool.", tools=[multiply])
json.dump({"answer": Runner.run_sync(agent, task["question"]).final_output}, sys.stdout)
