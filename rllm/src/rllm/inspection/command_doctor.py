"""The checkup's part on commands that plugins add to ``rllm``."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from rllm.cli.plugin_commands import PluginCommands, format_candidates, format_hint, load_command
from rllm_core.contracts.finding import Finding
from rllm_core.errors import PluginError


def examine_commands(commands: PluginCommands) -> Iterator[Finding]:
    """Import every command, which may take a while. Commands of blocked plugins are skipped."""
    for candidate in commands.usable:
        try:
            load_command(candidate)
        except PluginError as error:
            yield Finding(
                code=error.code,
                severity="error",
                subject=f"command {candidate.entry_point}",
                problem=error.message.rstrip("."),
                remedy=error.hint if error.hint.startswith("pip install") else _report(candidate.distribution),
                traceback="".join(traceback.format_exception(error)),
            )
    for name, offers in commands.by_name().items():
        if len(offers) > 1:
            yield Finding(
                code="ambiguous-command",
                severity="warning",
                subject=f"command {name}",
                problem=f"offered by {format_candidates(offers)}",
                remedy=format_hint(offers).rstrip("."),
            )
    for candidate in commands.hidden:
        yield Finding(
            code="shadowed-command",
            severity="note",
            subject=f"{candidate.distribution} {candidate.version}",
            problem=f"its command {candidate.entry_point!r} is ignored: `rllm {candidate.entry_point}` is the core's",
            remedy="its authors should choose another name",
        )


def _report(distribution: str) -> str:
    return f"upgrade or uninstall {distribution}, or report it to its authors"
