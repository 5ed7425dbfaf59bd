"""Agents that rllm can start by name."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

from rllm_core.errors import ConfigError
from rllm_gateway.running.sandboxed import INSTRUCTION_WORD


@dataclass(frozen=True, kw_only=True)
class Harness:
    """An agent of another project, as its own program."""

    install: str
    """A command that installs it."""
    command: tuple[str, ...]
    """The program, with `INSTRUCTION_WORD` as its task."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables with which it calls only the gateway, and asks its user nothing."""


HARNESSES: Mapping[str, Harness] = {
    # It uses chat completions with tool calls, through litellm.
    "mini-swe-agent": Harness(
        install="uv tool install --compile-bytecode mini-swe-agent",
        command=(
            *("mini-swe-agent", "--yolo", "--exit-immediately", "--cost-limit", "0", "--model", "openai/policy"),
            *("--output", "/dev/null", "--task", INSTRUCTION_WORD),
        ),
        environment={
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_SILENT_STARTUP": "1",
            # An answer with an error stays an error, so the agent does not repeat the request.
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
            # litellm would download a table of prices.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    ),
    # It uses chat completions with tool calls, as a stream.
    "qwen-code": Harness(
        install="npm install --global @qwen-code/qwen-code",
        command=("qwen", "--yolo", "--auth-type", "openai", "--prompt", INSTRUCTION_WORD),
        environment={"OPENAI_MODEL": "policy", "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1"},
    ),
}
"""Agents by name."""


def check_harness(name: str) -> Harness:
    """Return the agent of a name.

    Raises:
        ConfigError: its program is not installed.
    """
    harness = HARNESSES[name]
    if shutil.which(harness.command[0]) is None:
        raise ConfigError("program-not-found", f"{name} is not installed.", f"Run `{harness.install}`.")
    return harness
