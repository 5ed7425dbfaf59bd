"""anthropic-python: the loop of a tool by hand."""

import json
import sys

from anthropic import Anthropic

TOOL = {
    "name": "multiply",
    "description": "Multiply two whole numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
OPTIONS = {"model": "claude-sonnet-4-5", "max_tokens": 200, "tools": [TOOL]}
client = Anthropic()


def create(messages):
    return client.messages.create(messages=messages, **OPTIONS)


def stream_response(messages):
    with client.messages.stream(messages=messages, **OPTIONS) as stream:
        return stream.get_final_message()


task = json.load(sys.stdin)
ask = stream_response if task["streamed"] else create
messages = [{"role": "user", "content": task["question"]}]
message = ask(messages)
while message.stop_reason == "tool_use":
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": str(block.input["a"] * block.input["b"])}
        for block in message.content
        if block.type == "tool_use"
    ]
    messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    message = ask(messages)
json.dump({"answer": message.content[0].text}, sys.stdout)
