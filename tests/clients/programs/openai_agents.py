"""openai-agents with its default API: responses."""

import asyncio
import json
import sys

from agents import Agent, Runner, function_tool


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


async def streamed(agent, question):
    running = Runner.run_streamed(agent, question)
    async for _ in running.stream_events():
        pass
    return running


task = json.load(sys.stdin)
agent = Agent(name="Calculator", instructions="Use the tool.", tools=[multiply])
run = streamed if task["streamed"] else Runner.run
json.dump({"answer": asyncio.run(run(agent, task["question"])).final_output}, sys.stdout)
