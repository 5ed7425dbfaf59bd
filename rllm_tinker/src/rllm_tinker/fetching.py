"""The LoRA adapter that a checkpoint names, as peft's files."""

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
"""What the local server writes about a model, beside peft's files."""


def fetch_model(directory: Path, into: Path) -> None:
    """Copy what the local server of a run kept.

    Args:
        folder: the backend's folder in a checkpoint.
        into: an empty one. It gets peft's two files, and ``base.json`` for `rllm-local`: which weights are below.

    Raises:
        CheckpointError: another service keeps the weights, or the local server's files are gone.
        PluginError: the local server is not installed.
    """
    state = read_state(directory)
    if state.service != LOCAL or state.kept_in is None:
        raise CheckpointError(
            "weights-at-service",
            f"{state.service} keeps the weights of {directory}: {state.path}.",
            f"Fetch the adapter with the service's own command, `tinker checkpoint download {state.path}`, and export "
            "the folder that it makes.",
        )
    kept = _kept(state, Path(state.kept_in))
    try:
        config = json.loads((kept / CONFIG).read_text(encoding="utf-8"))
        base = json.loads((kept / RECORD).read_text(encoding="utf-8"))["base_model"]
        shutil.copyfile(kept / WEIGHTS, into / WEIGHTS)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            "file-unreadable",
            f"{directory} names {state.path}, whose files cannot be read in {kept}: {error}.",
            "Copy that folder back (training.default_local_dir), or give the path of a different checkpoint.",
        ) from error
    name = str(Path(base["name"]).absolute()) if Path(base["name"]).is_dir() else base["name"]
    (into / CONFIG).write_text(json.dumps(config | {"base_model_name_or_path": name}), encoding="utf-8")
    # The server of a run computes in float32.
    known = {"name": name, "seed": derive_seed(state.seed, "model"), "dtype": "float32", "sha256": base["sha256"]}
    (into / "base.json").write_text(json.dumps(known), encoding="utf-8")


def _kept(state: SavedState, root: Path) -> Path:
    try:
        from rllm_tinker_server.tinker_path import TinkerPath
    except ImportError as error:
        raise PluginError(
            "missing-package",
            "These files belong to the local Tinker server, which is not installed.",
            "pip install 'rllm-tinker[local]'",
        ) from error
    return TinkerPath.parse(state.path).below(root)
