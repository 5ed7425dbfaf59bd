"""A parent distributes the parts of a sum. Helpers work in parallel with a tool, and the parent adds their results."""

import asyncio
import json

from rllm_gateway.client import get_chat_client_async, session

NUMBER = {"type": "integer"}
ADD = {
    "name": "add",
    "description": "Adds two whole numbers.",
    "parameters": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]},
}
MOST_TURNS = 3


async def ask(messages, **options):
    """Return the model's next message, and append it to the conversation."""
    async with get_chat_client_async() as client:
        said = await client.chat.completions.create(model="any", messages=messages, **options)
    messages.append(said.choices[0].message.model_dump(exclude_none=True))
    return said.choices[0].message


def call(wanted):
    """Return the tool's answer to a call of the model."""
    try:
        numbers = json.loads(wanted.function.arguments)
        return str(numbers["a"] + numbers["b"])
    except (ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


async def help_with(part):
    """Run a helper, which adds the numbers of a part and may use the tool."""
    messages = [{"role": "user", "content": f"What is {' + '.join(map(str, part))}?"}]
    with session("helper"):
        for _ in range(MOST_TURNS):
            response = await ask(messages, tools=[{"type": "function", "function": ADD}])
            if not response.tool_calls:
                return response.content
            messages += [
                {"role": "tool", "tool_call_id": each.id, "content": call(each)} for each in response.tool_calls
            ]
    return None


async def solve(task):
    """Run the parent, which plans, waits for its helpers, and answers."""
    messages = [{"role": "user", "content": f"{task['question']} Plan."}]
    with session("parent"):
        await ask(messages)
        found = await asyncio.gather(*map(help_with, task["parts"]))
        messages.append({"role": "user", "content": f"The parts are {', '.join(map(str, found))}. The sum?"})
        answer = await ask(messages)
    right = [each == str(sum(part)) for each, part in zip(found, task["parts"], strict=True)]
    total = str(sum(map(sum, task["parts"])))
    return {"reward": {"helper": sum(right) / len(right), "parent": float(answer.content == total)}}
