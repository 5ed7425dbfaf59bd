"""The page of all error messages, made from the source: ``python docs/generate/errors_page.py``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from error_source import Message, messages

INTRODUCTION = """\
# Errors

<!-- Made by `make docs` from the source; do not edit. A test fails when it is stale. -->

Every message of an error or a warning, by where you meet it: what is wrong and where, then what to do. ‹name› stands
for what the message fills in. A message about your plugin names the plugin, and file and line where it failed.

- The command line prints one paragraph that begins with `error:`. `--debug` (in Python `RLLM_DEBUG=1`) shows the
  traceback too.
- Exit code 2: the command or the configuration cannot be used, and nothing was started. Exit code 1: the run began and
  failed; `--resume` continues from its newest checkpoint.
- An unused key, a wrong value or an unknown name: `rllm config explain KEY` says what the key means, and
  `rllm plugins list` which names there are.
- A plugin that does not load: `rllm plugins doctor` says why.
"""

GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "Configuration",
        "A key, a value, a file or a word of the command.",
        ("rllm.config", "rllm.cli", "rllm_core.schema", "rllm.inspection"),
    ),
    (
        "Names of plugins",
        "What is chosen by name is not there, is ambiguous, or does not load.",
        ("rllm_core.plugins", "rllm_core.contracts", "rllm_core.builtin"),
    ),
    (
        "Before a run starts",
        "Two choices do not fit together, or a choice has no effect.",
        ("rllm.planning", "rllm.training.setup", "rllm_core.rollout.settings"),
    ),
    ("From Python", "`AgentTrainer`, `UnifiedTrainer` and the functions that register.", ("rllm.api",)),
    ("Data sets and tasks", "Files, the hub, columns, ids.", ("rllm_data", "rllm_core.data")),
    (
        "Questions, rewards, environments",
        "What is played, and what it earns.",
        ("rllm.tasks", "rllm.environments", "rllm_envs"),
    ),
    (
        "Attempts",
        "Workflows, prompts, renderers and tools.",
        ("rllm_core.rollout", "rllm.tools", "rllm_renderers", "rllm_serving", "rllm_vllm"),
    ),
    (
        "Agents and the gateway",
        "Errors of a run with agents, and what the gateway answers to a client.",
        ("rllm_gateway",),
    ),
    (
        "Stages, estimators, losses",
        "What is computed from attempts.",
        ("rllm_core.pipeline", "rllm_core.algorithms", "rllm_core.updates", "rllm_estimators", "rllm_backend_kit"),
    ),
    (
        "The run folder, checkpoints, resuming",
        "What is on disk.",
        ("rllm.runs", "rllm.training", "rllm.tracking", "rllm_record", "rllm.trackers"),
    ),
    ("The backend `local`", "", ("rllm_local",)),
    ("The backend `endpoint`", "", ("rllm.endpoint",)),
    ("The backend `tinker`", "", ("rllm_tinker",)),
    ("The server `rllm tinker serve`", "What the server answers to a client.", ("rllm_tinker_server",)),
    ("The backend `verl`", "", ("rllm_verl",)),
    ("`rllm eval` and `rllm rescore`", "", ("rllm.evaluation", "rllm_view.rescoring")),
    ("`rllm runs`, `rllm episode`, `rllm why`", "", ("rllm_view",)),
    ("`rllm plugins new`", "", ("rllm_plugin_kit",)),
)
"""Heading, what it is about, and the modules whose messages are below it; of several that fit the longest counts."""


def errors_page(found: Iterable[Message]) -> str:
    """The page, in Markdown.

    Raises:
        KeyError: no group has a module with messages.
    """
    by_group: dict[str, list[str]] = {heading: [] for heading, _, _ in GROUPS}
    for message in found:
        by_group[_group_of(message.module)].append(_item(message))
    parts = [INTRODUCTION]
    for heading, about, _ in GROUPS:
        parts += [f"## {heading}\n", f"{about}\n"] if about else [f"## {heading}\n"]
        parts.append("\n".join(dict.fromkeys(by_group[heading])) + "\n")
    return "\n".join(parts)


def _group_of(module: str) -> str:
    fitting = [
        (len(prefix), heading)
        for heading, _, prefixes in GROUPS
        for prefix in prefixes
        if module == prefix or module.startswith(f"{prefix}.")
    ]
    if not fitting:
        raise KeyError(f"no group of docs/generate/errors_page.py has {module}")
    return max(fitting)[1]


def _item(message: Message) -> str:
    text = _escaped(message.text)
    remedy = f"\\\n  *{_escaped(message.remedy)}*" if _is_said(message.remedy) else ""
    return f"- {text}{remedy}"


def _is_said(remedy: str) -> bool:
    """Not one that is known only when the error occurs."""
    return bool(re.sub(r"‹[^›]*›", "", remedy).strip(" ."))


def _escaped(text: str) -> str:
    """As Markdown; text between backticks stays as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<\[\]\\])", r"\\\1", part).strip("`") for part in parts
    )


if __name__ == "__main__":
    sys.stdout.write(errors_page(messages()))
