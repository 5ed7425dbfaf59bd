"""Where the values of a run came from, in its folder beside ``config.yaml``.

``config.yaml`` holds values alone. A resumed run takes its values from there, and their origins from here: its report
and its dry run are then those of the run that was never stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rllm_core.config.layers import Tier
from rllm_core.config.packaged import DEFAULT
from rllm_core.config.save import FILE_NAME as CONFIG
from rllm_core.files import sha256, write_atomically

FILE_NAME = "origins.json"


def save_origins(origins: Mapping[str, str], by_user: Iterable[str], folder: Path) -> None:
    """Write the origins of the values in the folder's ``config.yaml``; those of defaults are left out.

    Args:
        origins: dotted key to origin.
        by_user: keys that a user set, at this start of the run or an earlier one.
        folder: of the run.
    """
    noted = {key: origin for key, origin in origins.items() if origin != DEFAULT}
    content = {"config_sha256": sha256(folder / CONFIG), "origins": noted, "by_user": sorted(by_user)}
    write_atomically(folder / FILE_NAME, json.dumps(content, indent=1) + "\n")


def with_saved_origins(origins: Mapping[str, str], config: Path) -> dict[str, str]:
    """Origins in which a run's ``config.yaml`` is replaced by where the run had the value from.

    They stay as they are where the folder has no usable origins: none at all, or those of another ``config.yaml``,
    since somebody has edited it.

    Args:
        origins: dotted key to origin. Values from `config` have its path, perhaps followed by ``, by KEY``.
        config: the file.
    """
    noted = _saved(config, "origins")
    if not isinstance(noted, dict):
        return dict(origins)
    taken = str(config)
    return {
        key: noted.get(key, DEFAULT) if origin == taken or origin.startswith(f"{taken}, by ") else origin
        for key, origin in origins.items()
    }


def saved_by_user(tiers: Mapping[str, Tier], config: Path) -> frozenset[str]:
    """Keys whose values are a run's ``config.yaml``'s, and that a user set when it was written.

    None where the folder has no usable origins, as in `with_saved_origins`.
    """
    noted = _saved(config, "by_user")
    kept = {key for key, tier in tiers.items() if tier == Tier.SAVED}
    return frozenset(kept.intersection(noted)) if isinstance(noted, list) else frozenset()


def _saved(config: Path, part: str) -> Any:
    """What the file beside a ``config.yaml`` says, None where it says nothing of this very file."""
    try:
        content = json.loads((config.parent / FILE_NAME).read_text(encoding="utf-8"))
        return content.get(part) if content["config_sha256"] == sha256(config) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
