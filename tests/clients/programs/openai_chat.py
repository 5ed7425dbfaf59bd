"""openai-python, chat completions: the loop of a tool by hand."""

import json
import sys

from openai import OpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiply two whole numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
client = OpenAI()


def create(messages):
    return client.chat.completions.create(model="gpt-4o", messages=messages, tools=[TOOL]).choices[0].message


def stream_response(messages):
    with client.chat.completions.stream(model="gpt-4o", messages=messages, tools=[TOOL]) as stream:
        return stream.get_final_completion().choices[0].message


task = json.load(sys.stdin)
ask = stream_response if task["streamed"] else create
messages = [{"role": "user", "content": task["question"]}]
response = ask(messages)
while response.tool_calls:
    messages.append(response)
    for call in response.tool_calls:
        numbers = json.loads(call.function.arguments)
        product = numbers["a"] * numbers["b"]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(product)})
    response = ask(messages)
json.dump({"answer": response.content}, sys.stdout)
