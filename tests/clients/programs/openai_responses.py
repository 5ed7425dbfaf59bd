"""openai-python, responses: the loop of a tool by hand."""

import json
import sys

from openai import OpenAI

TOOL = {
    "type": "function",
    "name": "multiply",
    "description": "Multiply two whole numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": True,
}
client = OpenAI()


def create(items):
    return client.responses.create(model="gpt-4o", input=items, tools=[TOOL])


def stream_response(items):
    with client.responses.stream(model="gpt-4o", input=items, tools=[TOOL]) as stream:
        return stream.get_final_response()


task = json.load(sys.stdin)
ask = stream_response if task["streamed"] else create
items = [{"role": "user", "content": task["question"]}]
response = ask(items)
while calls := [item for item in response.output if item.type == "function_call"]:
    items += response.output
    for call in calls:
        numbers = json.loads(call.arguments)
        product = numbers["a"] * numbers["b"]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": str(product)})
    response = ask(items)
json.dump({"answer": response.output_text}, sys.stdout)
