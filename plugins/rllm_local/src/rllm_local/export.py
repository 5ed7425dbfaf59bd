"""Writing the model of a run in forms that other programs open."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from rllm_backend_kit.model_files import model_folder
from rllm_core.errors import CheckpointError, ConfigError
from rllm_local.adapter_files import adapter_folder
from rllm_local.settings import ModelSection

TINKER = "tinker.json"
SHARDS = "shards"


def export_model(run: Path, form: str, output: Path | None, dtype: Any) -> Path:
    """Write a model; returns the folder.

    Args:
        run: a run, a checkpoint, a model's folder or an adapter's.
        form: `hf`, `merged` or `adapter`.
        output: the folder to write; None: beside what is exported.
        dtype: `float32` or `bfloat16`, of whole models.

    Raises:
        ConfigError: there is no such run, it has no model of this form, or the folder is taken.
        CheckpointError: the checkpoint holds no model that can be read here.
    """
    source = _source(run)
    adapter = adapter_folder(str(source))
    if adapter is None and form != "hf":
        raise ConfigError(
            f"{source} holds a whole model and no LoRA adapter, so there is nothing to write as {form!r}.",
            "Use --to hf; runs with model.lora_rank have adapters.",
        )
    folder = _free(output or (run / f"export-{form}"))
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    beside.mkdir(parents=True)
    try:
        if form == "adapter":
            assert adapter is not None
            shutil.copytree(adapter, beside, dirs_exist_ok=True)
        else:
            _write_whole(source, beside, dtype)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _source(run: Path) -> Path:
    """The checkpoint or the model that is meant."""
    if not run.exists():
        raise ConfigError(f"There is no {run}.", "Name a run's folder, such as runs/rllm-training/default.")
    checkpoints = run / "checkpoints"
    source = checkpoints / "latest" if checkpoints.is_dir() else run
    if not source.exists():
        raise ConfigError(
            f"{run} has no checkpoint yet.",
            "Let it train to one (rllm.trainer.save_freq), or stop it with Ctrl-C, which saves.",
        )
    if adapter_folder(str(source)) is None and model_folder(source) is None:
        raise _no_model(source)
    return source


def _no_model(source: Path) -> CheckpointError:
    """What a checkpoint of another backend holds instead of a model, and how to come by one."""
    backend = source / "backend"
    if (backend / TINKER).is_file():
        path = json.loads((backend / TINKER).read_text(encoding="utf-8")).get("path", "tinker://…")
        return CheckpointError(
            f"{source} is of the backend tinker, whose service keeps the weights: {path}.",
            f"Fetch the adapter with the service's own command, `tinker checkpoint download {path}`, and export the "
            "folder that it makes.",
        )
    if (backend / SHARDS).is_dir():
        return CheckpointError(
            f"{source} is of the backend verl and holds shards without a whole model, as runs with a LoRA adapter or "
            "without `hf_model` in actor_rollout_ref.actor.checkpoint.save_contents do.",
            "Merge the shards with `python -m verl.model_merger merge`, and export the folder that it makes.",
        )
    return CheckpointError(
        f"{source} holds no model.", "Name a run, one of its checkpoints, a model's folder, or an adapter's."
    )


def _free(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists, and nothing is overwritten.", "Name another folder with --output.")
    return folder


def _write_whole(source: Path, folder: Path, dtype: Any) -> None:
    from rllm_local.model import load_model

    loaded = load_model(ModelSection(name=str(source), dtype=dtype, device="cpu"), 0)
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
