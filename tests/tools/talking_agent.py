"""An agent that makes calls until the limit, as a function and as a program. It has no client, so it starts fast."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

TURNS = 6
FORBIDDEN = 403
"""The gateway's error code when a rollout has used all its calls."""


def solve(task: dict[str, Any]) -> float:
    """Send the task's question repeatedly."""
    messages = [{"role": "user", "content": f"{task['question']} {task.get('long', '')}"}]
    for _ in range(TURNS):
        try:
            said = _ask(messages)
        except urllib.error.HTTPError as error:
            if error.code == FORBIDDEN:
                break
            raise
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Sure?"}]
    return 0.5


def _ask(messages: list[dict[str, str]]) -> str:
    body = json.dumps({"model": "any", "messages": messages}).encode()
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        said: str = json.load(answer)["choices"][0]["message"]["content"]
    return said


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"reward": solve(json.load(sys.stdin))}) + "\n")
