"""The environment variables by which an agent finds its session."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from rllm_gateway.session import OpenedSession

URL, TASK = "RLLM_SESSION_URL", "RLLM_TASK"
NO_TRACES = "OPENAI_AGENTS_DISABLE_TRACING"
LONGEST = 100_000
"""Bytes of a task in a variable; Linux takes 131,072. Longer ones are on standard input alone."""
LOCAL = ("127.0.0.1", "localhost")


def environment_of(session: OpenedSession, task: Mapping[str, Any]) -> dict[str, str]:
    """Variables of one attempt: where clients of OpenAI and Anthropic reach the policy, and by which key."""
    variables = {
        "OPENAI_BASE_URL": session.openai_url(),
        # litellm and old clients
        "OPENAI_API_BASE": session.openai_url(),
        "OPENAI_API_KEY": session.key,
        "ANTHROPIC_BASE_URL": session.anthropic_url(),
        "ANTHROPIC_API_KEY": session.key,
        URL: session.url,
        # openai-agents sends its traces to OpenAI with that key; it is none of theirs.
        NO_TRACES: os.environ.get(NO_TRACES, "1"),
    }
    said = json.dumps(dict(task))
    if len(said) <= LONGEST:
        variables[TASK] = said
    for name in ("NO_PROXY", "no_proxy"):
        # A proxy of the machine would look for the gateway on another one.
        variables[name] = ",".join(filter(None, (os.environ.get(name, ""), *LOCAL)))
    return variables
