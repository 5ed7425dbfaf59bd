"""LoRA adapters as models: a directory in peft's format, or the checkpoint of a LoRA run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_core.errors import ConfigError
from rllm_core.files import sha256

CONFIG, WEIGHTS, BASE = "adapter_config.json", "adapter_model.safetensors", "base.json"


@dataclass(frozen=True)
class Adapter:
    """An adapter and its base model."""

    directory: Path
    base: str
    """The base model: `tiny`, a directory, or a hub id."""
    seed: int
    """Seed for the weights of `tiny`."""
    rank: int
    alpha: int
    targets: Any
    """Module names, or a pattern that matches them."""

    def digest_over(self, base: str) -> str:
        """Return a SHA-256 of the adapter's weights and the base model's digest."""
        return hashlib.sha256(f"{base} {sha256(self.directory / WEIGHTS)}".encode()).hexdigest()


def find_adapter(path: Path) -> Adapter | None:
    """Return the adapter at a path, which is an adapter directory or a checkpoint. None if there is no adapter.

    Raises:
        ConfigError: the adapter's files are unreadable or incomplete.
    """
    for directory in (path, path / "backend" / "model"):
        if (directory / CONFIG).is_file() and not (directory / "config.json").is_file():
            return _read(directory)
    return None


def _read(directory: Path) -> Adapter:
    try:
        config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        known = json.loads((directory / BASE).read_text(encoding="utf-8")) if (directory / BASE).is_file() else {}
        base, rank, alpha = config["base_model_name_or_path"], config["r"], config["lora_alpha"]
        if not isinstance(base, str):
            raise KeyError("base_model_name_or_path")
        seed = known.get("seed", 0)
        return Adapter(directory, base, seed, rank, alpha, config.get("target_modules") or "all-linear")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "bad-adapter",
            f"actor_rollout_ref.model.path={str(directory)!r} is a LoRA adapter that cannot be read ({error!r}).",
            f"Check base_model_name_or_path, r and lora_alpha in its {CONFIG}.",
        ) from error
