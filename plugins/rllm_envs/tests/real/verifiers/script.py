"""The model of the tests: a function of the system message and the last message, behind an endpoint for verifiers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DONE = "###DONE###"
WRONG = 4
"""The model does not know this number times two."""
CALL = re.compile(r"<call>(.*)</call>")


def say(system: str, last: str) -> str:
    """Return the response of any seat. Some sums are wrong, so that rewards differ."""
    if "role-playing a USER" in system:
        city = re.findall(r"ticket to (\w+)", system)[0]
        return DONE if "booked" in last else f"A ticket to {city}, please."
    if found := re.search(r"A ticket to (\w+)", last):
        return f"The ticket to {found[1]} is booked."
    if found := re.search(r"Which hour is it in (\w+)", last):
        return f'<call>{{"name": "clock_hours", "arguments": {{"city": "{found[1]}"}}}}</call>'
    if found := re.search(r"sum with the number (\d+)", last):
        return f"{found[1]} + {found[1]}"
    if found := re.search(r"What is (\d+) \+", last):
        number = int(found[1])
        return str(2 * number) if number != WRONG else "seven"
    return last.replace("Paris", "Lyon")


def say_to_prompt(prompt: str) -> str:
    """Return the response to a prompt in the form of `ToolTokenizer`."""
    system = re.findall(r"<s>(.*?)<u>", prompt, re.DOTALL)
    last = re.split(r"<[ut]>", prompt.removesuffix("<a>"))[-1]
    return say(system[0] if system else "", last)


def judge(question: str) -> str:
    """Return the verdict of a judge: the last block of its prompt is the response, and 2 is right."""
    return "yes" if question.split("```")[-2].strip() == "2" else "no"


class Handler(BaseHTTPRequestHandler):
    """Chat completions, whole or as a stream."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = _answer(body)
        self.send_response(200)
        if body.get("stream"):
            kind, data = "text/event-stream", _stream(body["model"], message)
        else:
            kind, data = "application/json", json.dumps(_completion(body["model"], message)).encode()
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


def _answer(body: dict[str, Any]) -> dict[str, Any]:
    messages = body["messages"]
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    last = messages[-1]["content"]
    if body["model"] == "judge":
        return {"role": "assistant", "content": judge(last)}
    text = say(system, last)
    if found := CALL.search(text):
        function = json.loads(found[1])
        called = {"name": function["name"], "arguments": json.dumps(function["arguments"])}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": called}],
        }
    return {"role": "assistant", "content": text}


USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}


def _completion(model: str, message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": _reason(message), "message": message}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": model, "choices": [choice], "usage": USAGE}


def _stream(model: str, message: dict[str, Any]) -> bytes:
    head = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": model}
    chunks = [
        {**head, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _reason(message)}]},
        {**head, "choices": [], "usage": USAGE},
    ]
    return b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks) + b"data: [DONE]\n\n"


def _reason(message: dict[str, Any]) -> str:
    return "tool_calls" if "tool_calls" in message else "stop"


@contextmanager
def endpoint() -> Iterator[str]:
    """Serve the model until the context ends. Yields the base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
