"""The index of what our distributions outside the core offer; all must be installed."""

from __future__ import annotations

import json
import sys
from importlib.metadata import metadata
from typing import Any

from rllm.cli.command_groups import PROGRAM
from rllm.cli.plugin_commands import load_command
from rllm_core.plugins.discovery import COMMAND, CORE
from rllm_core.plugins.registry import Registry
from rllm_core.plugins.specs import KINDS

OURS = "rllm-"
NOT_OURS = (CORE,)
"""Always installed, like the program. Only the program's commands are in the index, for `rllm --help`."""
EXTRAS = {
    "rllm-envs": {
        "gymnasium": {"rllm.env.name": "gymnasium"},
        "inspect": {"rllm.env.name": "inspect"},
        "nemo-gym": {"rllm.env.name": "nemo_gym"},
        "open-spiel": {"rllm.env.name": "open_spiel"},
        "openenv": {"rllm.env.name": "openenv"},
        "reasoning-gym": {"rllm.env.name": "reasoning_gym"},
        "textarena": {"rllm.env.name": "textarena"},
        "verifiers": {"rllm.env.name": "verifiers"},
    },
    "rllm-tinker": {"local": {"tinker_base_url": "local"}},
    "rllm-verl": {"cpu": {"rllm.profile": "cpu"}},
}
"""Distribution -> extra -> the keys and values that make a run need it."""
ON_GPUS = {
    "rllm-verl": {"on_gpus": ["vllm"], "without_gpu": "'rllm-verl[cpu]', and --profile cpu"},
    "rllm-vllm": {"on_gpus": ["gpu"], "without_gpu": "'rllm-vllm[cpu]'"},
}
NO_GPUS = {"on_gpus": [], "without_gpu": ""}


def index() -> dict[str, Any]:
    """See `rllm_core.plugins.discovery.IndexEntry`."""
    registry = Registry.load(environ={})
    offers: dict[str, dict[str, dict[str, str]]] = {}
    for kind in KINDS:
        for entry in registry.all(kind):
            offers.setdefault(entry.distribution, {}).setdefault(kind, {})[entry.name] = entry.plugin.summary
    for candidate in registry.discovery.commands:
        summary = load_command(candidate).get_short_help_str(limit=100)
        offers.setdefault(candidate.distribution, {}).setdefault(COMMAND, {})[candidate.entry_point] = summary
    endings: dict[str, list[str]] = {}
    for entry in registry.all("dataset"):
        endings.setdefault(entry.distribution, []).extend(sorted(entry.plugin.suffixes))
    return {
        name: {
            "summary": metadata(name)["Summary"],
            "offers": kinds,
            "extras": EXTRAS.get(name, {}),
            **ON_GPUS.get(name, NO_GPUS),
            **({"endings": endings[name]} if name in endings else {}),
        }
        for name, kinds in sorted(offers.items())
        if name.startswith(OURS) and name not in NOT_OURS
    } | {
        PROGRAM: {"summary": metadata(PROGRAM)["Summary"], "offers": {COMMAND: offers[PROGRAM][COMMAND]}}
        | {"extras": {}, **NO_GPUS}
    }


def page() -> str:
    return json.dumps(index(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
