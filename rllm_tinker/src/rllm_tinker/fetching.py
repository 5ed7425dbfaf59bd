"""Copies a checkpoint's LoRA adapter from the local server, as peft files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rllm_core.errors import CheckpointError, PluginError
from rllm_core.seeding import derive_seed
from rllm_tinker.settings import LOCAL
from rllm_tinker.state import SavedState, read_state

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
RECORD = "model.json"
"""The file in which the local server describes a model, next to peft's files."""


def fetch_model(directory: Path, into: Path) -> None:
    """Copy the adapter files that a run's local server stored.

    Args:
        directory: the backend's directory in a checkpoint.
        into: an empty directory. It receives peft's two files, and ``base.json``, which describes the base weights for
            `rllm-local`.

    Raises:
        CheckpointError: a different service stores the weights, or the local server's files are missing.
        PluginError: the local server is not installed.
    """
    state = read_state(directory)
    if state.service != LOCAL or state.kept_in is None:
        raise CheckpointError(
            "weights-at-service",
            f"{state.service} stores the weights of {directory}: {state.path}.",
            f"Download the adapter with the service's command `tinker checkpoint download {state.path}`, then export "
            "the downloaded directory.",
        )
    kept = _find_checkpoint_path(state, Path(state.kept_in))
    try:
        config = json.loads((kept / CONFIG).read_text(encoding="utf-8"))
        base = json.loads((kept / RECORD).read_text(encoding="utf-8"))["base_model"]
        shutil.copyfile(kept / WEIGHTS, into / WEIGHTS)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            "file-unreadable",
            f"{directory} refers to {state.path}, but its files in {kept} cannot be read: {error}.",
            "Copy that directory back (training.default_local_dir), or pass the path of a different checkpoint.",
        ) from error
    name = str(Path(base["name"]).absolute()) if Path(base["name"]).is_dir() else base["name"]
    (into / CONFIG).write_text(json.dumps(config | {"base_model_name_or_path": name}), encoding="utf-8")
    # A run's local server computes in float32.
    known = {"name": name, "seed": derive_seed(state.seed, "model"), "dtype": "float32", "sha256": base["sha256"]}
    (into / "base.json").write_text(json.dumps(known), encoding="utf-8")


def _find_checkpoint_path(state: SavedState, root: Path) -> Path:
    try:
        from rllm_tinker_server.checkpoints import TinkerPath
    except ImportError as error:
        raise PluginError(
            "missing-package",
            "These files belong to the local Tinker server, which is not installed.",
            "pip install 'rllm-tinker[local]'",
        ) from error
    return TinkerPath.parse(state.path).below(root)
