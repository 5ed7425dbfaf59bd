"""Names of runs whose user sets none: the environment and a number, for example ``guess-2``."""

from __future__ import annotations

import re
from pathlib import Path

from rllm.config.saved_config import FILE_NAME, read_config
from rllm_core.schema.run_sections import NO_ENVIRONMENT, TrainerSection
from rllm_record.run_files import PLUGINS

BEFORE: str = TrainerSection.model_fields["experiment_name"].default
"""Name that earlier builds gave to all of these runs."""
_NUMBERED = re.compile(r"(.+)-([0-9]{1,5})")
_LONGEST_STEM = 100


def next_name(project: Path, environment: str) -> str:
    """Return the environment's name with the number after the highest one in the project's directory."""
    stem, numbers = name_stem(environment), [0]
    for each in project.glob("*"):
        match = _NUMBERED.fullmatch(each.name)
        if match and match[1] == stem:
            numbers.append(int(match[2]))
    return f"{stem}-{max(numbers) + 1}"


def latest_name(project: Path, environment: str) -> str | None:
    """Return the name of the environment's numbered run that was started last. None if no such run exists.

    Without an environment, runs of all environments count.
    """
    numbered = [
        (file.stat().st_mtime_ns, file.parent.name)
        for file in project.glob(f"*/{PLUGINS}")
        if file.parent.name == BEFORE or _NUMBERED.fullmatch(file.parent.name)
    ]
    names = (name for _, name in sorted(numbered, reverse=True))
    return next((name for name in names if _has_environment(project / name, environment)), None)


def name_stem(environment: str) -> str:
    """Return an environment's name as a part of a file's name: ``reasoning_gym:chain_sum`` gives
    ``reasoning_gym-chain_sum``."""
    if environment == NO_ENVIRONMENT:
        return "run"
    plugin, colon, rest = environment.partition(":")
    name = plugin.rpartition("/")[2] + colon + rest
    return re.sub(r"[^\w-]+", "-", name).strip("-")[:_LONGEST_STEM] or "run"


def _has_environment(run: Path, environment: str) -> bool:
    if environment == NO_ENVIRONMENT:
        return True
    return (run / FILE_NAME).is_file() and name_stem(read_config(run)["rllm"]["env"]["name"]) == name_stem(environment)
