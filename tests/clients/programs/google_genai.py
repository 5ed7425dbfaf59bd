"""google-genai: the loop of a tool by hand."""

import json
import sys

from google.genai import Client, types

PARAMETERS = {
    "type": "OBJECT",
    "properties": {"a": {"type": "INTEGER"}, "b": {"type": "INTEGER"}},
    "required": ["a", "b"],
}
FUNCTION = {"name": "multiply", "description": "Multiply two whole numbers.", "parameters": PARAMETERS}
CONFIG = {"tools": [{"function_declarations": [FUNCTION]}], "max_output_tokens": 200}
client = Client()


def create(contents):
    response = client.models.generate_content(model="gemini-2.5-flash", contents=contents, config=CONFIG)
    return [response.candidates[0].content]


def stream_response(contents):
    stream = client.models.generate_content_stream(model="gemini-2.5-flash", contents=contents, config=CONFIG)
    return [chunk.candidates[0].content for chunk in stream]


task = json.load(sys.stdin)
ask = stream_response if task["streamed"] else create
contents = [types.UserContent(task["question"])]
counted = client.models.count_tokens(model="gemini-2.5-flash", contents=contents).total_tokens
assert counted > len(task["question"])
response = ask(contents)
while calls := [part.function_call for content in response for part in content.parts if part.function_call]:
    results = [
        types.Part(
            function_response=types.FunctionResponse(
                id=call.id, name=call.name, response={"output": str(call.args["a"] * call.args["b"])}
            )
        )
        for call in calls
    ]
    contents += [*response, types.UserContent(results)]
    response = ask(contents)
json.dump({"answer": "".join(part.text for content in response for part in content.parts)}, sys.stdout)
