"""Agents that rllm can start by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllm.builtin.tasks.task_directories import INSTRUCTION
from rllm_core.contracts.sandbox import Sandbox, SandboxSetup
from rllm_core.errors import ConfigError
from rllm_gateway.running.runners import TASK
from rllm_gateway.running.sandboxed import BASE_URL, INSTRUCTION_WORD, SandboxRunner
from rllm_gateway.sessions.link import RewardSource


@dataclass(frozen=True, kw_only=True)
class Harness:
    """An agent of another project, as its own program."""

    install: str
    """A command that installs it."""
    command: tuple[str, ...]
    """The program. It receives the instruction as `INSTRUCTION_WORD`, or else on standard input."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables with which it calls only the gateway, and asks its user nothing."""


class HarnessRunner(SandboxRunner):
    """Starts a coding agent for which rllm has a name. Its standard input is the instruction.

    Its output is no reward, because the model may have written it.
    """

    other_reward_source: RewardSource = "rllm.reward"

    def __init__(
        self,
        harness: Harness,
        arguments: Sequence[str],
        start: Callable[[SandboxSetup], Awaitable[Sandbox]],
        seconds: float,
    ) -> None:
        """Start nothing yet. See `SandboxRunner`."""
        super().__init__([*harness.command, *arguments], start, seconds)
        self._environment = harness.environment

    def _variables(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Return the environment variables for the agent, without `TASK`, which may contain the answer."""
        return {**self._environment, **{name: value for name, value in environment.items() if name != TASK}}

    def _stdin(self, task: Mapping[str, Any]) -> str:
        return str(task.get(INSTRUCTION, ""))


OPENCODE_CONFIG = {
    "provider": {
        "gateway": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {"policy": {}},
        },
    },
    "enabled_providers": ["gateway"],
    "share": "disabled",
    "autoupdate": False,
    # Their requests need servers other than the gateway.
    "permission": {"webfetch": "deny", "websearch": "deny"},
}
"""Config file of opencode. It replaces `{env:NAME}` by an environment variable."""

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
    # It streams messages with tool calls.
    "claude-code": Harness(
        install="npm install --global @anthropic-ai/claude-code",
        command=(
            *("claude", "--print", "--dangerously-skip-permissions", "--model", "policy"),
            # Their requests need servers other than the gateway.
            "--disallowed-tools=WebFetch,WebSearch",
        ),
        environment={
            # Telemetry, error reports, updates and feedback.
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
            # Parameters that only Anthropic's servers support. Tools that are found by a search are among them.
            "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
            "ENABLE_TOOL_SEARCH": "false",
            # A line of the system prompt that differs between calls, so no call would continue the call before it.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            # Without it, root may not skip permissions.
            "IS_SANDBOX": "1",
        },
    ),
    # It streams responses with tool calls.
    "codex": Harness(
        install="npm install --global @openai/codex",
        command=(
            *("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            *("--model", "policy", "--config", "model_provider=gateway", "--config"),
            f'model_providers.gateway={{name="gateway", base_url="{BASE_URL}", env_key="OPENAI_API_KEY"}}',
            *("--config", "analytics.enabled=false", "--config", "feedback.enabled=false"),
            *("--config", "check_for_update_on_startup=false"),
            # They are loaded from other servers.
            *("--disable", "plugins", "--disable", "remote_plugin", "--disable", "apps"),
            # Tools that are not functions, or return images.
            *("--disable", "multi_agent", "--config", "web_search=disabled", "--config", "tools.view_image=false"),
        ),
    ),
    # It streams chat completions with tool calls.
    "qwen-code": Harness(
        install="npm install --global @qwen-code/qwen-code",
        command=("qwen", "--yolo", "--auth-type", "openai"),
        environment={
            "OPENAI_MODEL": "policy",
            "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
            # They are sent to another server.
            "QWEN_USAGE_STATISTICS_ENABLED": "false",
        },
    ),
    # It streams chat completions with tool calls.
    "opencode": Harness(
        install="npm install --global opencode-ai",
        # Without a title, it calls the model to write one.
        command=("opencode", "run", "--pure", "--auto", "--title", "task", "--model", "gateway/policy"),
        environment={
            "OPENCODE_CONFIG_CONTENT": json.dumps(OPENCODE_CONFIG),
            # It installs a package for its plugins when it starts.
            "npm_config_offline": "true",
            # They are loaded from other servers.
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
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
