"""The error for a plugin name that does not exist. It lists the closest names, all names, or the package to install."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rllm_core.contracts.chosen import FAMILY, Registered
from rllm_core.errors import PluginError, did_you_mean
from rllm_core.plugins.discovery import IN_PROCESS, Broken, Candidate, normalize
from rllm_core.plugins.first_party import find_home_package, summaries_elsewhere
from rllm_core.plugins.kinds import KINDS


def unknown_name(
    kind: str, name: str, offered: Sequence[Registered[Any]], broken: Sequence[Broken], blocked: Sequence[Candidate]
) -> PluginError:
    """Return the error for `name`, which may be qualified (``distribution/name``) and have a family
    (``name:family``)."""
    distribution, _, bare = name.partition(FAMILY)[0].rpartition("/")
    known = _known(kind, [entry.name for entry in offered])
    if normalize(distribution) == IN_PROCESS:
        return PluginError(
            "plugin-of-other-program",
            f"{kind} {name!r} was a class or function of a Python program, and is not part of this one.",
            "Start the run from that program again, name a module that registers it in rllm.plugins.import_modules, or "
            f"choose another {kind}.",
        )
    home = distribution or find_home_package(kind, bare)
    if home:
        for plugin in broken:
            if normalize(plugin.distribution) == normalize(home):
                message = f"{kind} {name!r} cannot be used: plugin {plugin.name} is broken: {plugin.reason}."
                return PluginError("broken-plugin", message, plugin.remedy or "`rllm plugins doctor` shows more.")
        for candidate in blocked:
            if normalize(candidate.distribution) == normalize(home):
                message = f"{kind} {name!r} cannot be used: {candidate.distribution} is blocked."
                return PluginError("blocked-plugin", message, f"It is blocked by {candidate.blocked_by}.")
    others = [entry.qualified_name for entry in offered if entry.name == bare]
    if distribution and others:
        return PluginError(
            "unknown-plugin", f"{distribution} has no {kind} {bare!r}.", f"It is in {' and '.join(others)}."
        )
    first_party, installed = find_home_package(kind, bare), {normalize(entry.distribution) for entry in offered}
    if first_party and normalize(home or "") == first_party and first_party not in installed:
        return PluginError(
            "plugin-not-installed", f"{kind} {bare!r} is in {first_party}: pip install {first_party}", known
        )
    nearest = did_you_mean(bare, [*(entry.name for entry in offered), *summaries_elsewhere(kind)])
    suspects = ", ".join(plugin.name for plugin in broken)
    doubt = f"It may be in a broken plugin ({suspects}): see `rllm plugins doctor`." if suspects else ""
    return PluginError(
        "unknown-plugin", f"There is no {kind} named {name!r}.", " ".join(filter(None, (nearest, known, doubt)))
    )


def _known(kind: str, names: Sequence[str]) -> str:
    plural = KINDS[kind].plural
    return f"Installed {plural}: {', '.join(sorted(set(names)))}." if names else f"No {plural} are installed."
