"""`rllm export`: writes a run's model in formats for other programs."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import click

from rllm_backend_kit.model_files import model_directory
from rllm_core.errors import CheckpointError, ConfigError
from rllm_core.plugins import resolve
from rllm_local.adapter_files import adapter_directory
from rllm_local.settings import ModelSection
from rllm_record.store.fetching import RunPath


@click.command()
@click.argument("run", type=RunPath("latest checkpoint"))
@click.option(
    "--to",
    "form",
    type=click.Choice(["hf", "merged", "adapter"]),
    required=True,
    help="hf: a directory for transformers' from_pretrained. merged: the same for a LoRA run, with the adapter merged. "
    "adapter: the LoRA adapter, for peft.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Output directory. Default: RUN/export-FORM.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Type of the weights for hf and merged. float32 keeps the trained weights exactly.",
)
def export(run: Path, form: str, output: Path | None, dtype: str) -> None:
    """Write the model of RUN to a directory. RUN is a run, checkpoint, model directory, or peft adapter directory.

    For a run, the newest checkpoint is used. Existing files are never overwritten, and RUN does not change.

    \b
    For vLLM, llama.cpp, or any program that reads Hugging Face directories, at half the size:
      rllm export runs/rllm-training/guess-1 --to hf --dtype bfloat16
    For a run with model.lora_rank, with the adapter merged into its model:
      rllm export runs/rllm-training/guess-1 --to merged --output ./merged
    Only the adapter, for peft or for servers that switch between adapters:
      rllm export runs/rllm-training/guess-1 --to adapter
    You can use the output directory as a model:
      rllm eval guess --model ./merged
    """
    directory = export_model(run.expanduser(), form, output, dtype)
    click.echo(f"{form} is in {directory}")


PLUGINS = "plugins.json"
"""A run's list of used plugins, which contains its backend."""


def export_model(run: Path, form: str, output: Path | None, dtype: Any) -> Path:
    """Write a model and return the output directory.

    Args:
        run: a run, a checkpoint, a model directory or an adapter directory.
        form: `hf`, `merged` or `adapter`.
        output: the output directory. None to use `export-FORM` inside `run`.
        dtype: `float32` or `bfloat16`, for whole models.

    Raises:
        ConfigError: the run does not exist, it cannot be written in this form, or the output directory is not empty.
        CheckpointError: the checkpoint contains no model, and its backend cannot fetch it.
        PluginError: the run's backend is not installed.
    """
    source = _source(run)
    if adapter_directory(str(source)) is None and model_directory(source) is None:
        with tempfile.TemporaryDirectory(prefix="rllm-export-") as fetched:
            _fetch(source, Path(fetched))
            return _export(Path(fetched), run, form, output, dtype)
    return _export(source, run, form, output, dtype)


def _export(source: Path, run: Path, form: str, output: Path | None, dtype: Any) -> Path:
    adapter = adapter_directory(str(source))
    if adapter is None and form != "hf":
        raise ConfigError(
            "no-adapter",
            f"{run} contains a whole model and no LoRA adapter, so it cannot be written as {form!r}.",
            "Use --to hf. Only runs with model.lora_rank have adapters.",
        )
    directory = _free(output or (run / f"export-{form}"))
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        if form == "adapter":
            assert adapter is not None
            shutil.copytree(adapter, temporary, dirs_exist_ok=True)
        else:
            _write_whole(source, temporary, dtype)
        temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def _source(run: Path) -> Path:
    """Return the path of the checkpoint or model to export."""
    if not run.exists():
        raise ConfigError(
            "run-not-found", f"{run} does not exist.", "Pass a run directory, for example runs/rllm-training/guess-1."
        )
    checkpoints = run / "checkpoints"
    source = checkpoints / "latest" if checkpoints.is_dir() else run
    if not source.exists():
        raise ConfigError(
            "no-checkpoint",
            f"{run} has no checkpoint yet.",
            "Wait until the run saves a checkpoint (rllm.trainer.save_freq), or stop it with Ctrl-C, which also saves.",
        )
    return source


def _fetch(source: Path, directory: Path) -> None:
    """Let the run's backend write the model if the checkpoint does not contain it."""
    fetch = None
    if (source / "backend").is_dir() and (name := _backend_of(source)) is not None:
        fetch = resolve("backend", name).plugin.fetch_model
    if fetch is None:
        raise CheckpointError(
            "no-model-in-checkpoint",
            f"{source} contains no model.",
            "Pass a run, one of its checkpoints, a model directory, or an adapter directory.",
        )
    fetch(source / "backend", directory)


def _backend_of(checkpoint: Path) -> str | None:
    """Return the qualified name of the backend that wrote a checkpoint. None if the run did not record it."""
    try:
        used = json.loads((checkpoint.resolve().parents[1] / PLUGINS).read_text(encoding="utf-8"))
        return next(f"{each['distribution']}/{each['name']}" for each in used if each["kind"] == "backend")
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None


def _free(directory: Path) -> Path:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(
            "directory-in-use",
            f"{directory} exists, and export does not overwrite files.",
            "Set a different directory with --output.",
        )
    return directory


def _write_whole(source: Path, directory: Path, dtype: Any) -> None:
    from rllm_local.model import load_model

    directory_of_model = model_directory(source)
    config = {} if directory_of_model is None else json.loads((directory_of_model / "config.json").read_text("utf-8"))
    classifier = any(name.endswith("ForSequenceClassification") for name in config.get("architectures") or ())
    loaded = load_model(ModelSection(name=str(source), dtype=dtype, device="cpu"), 0, classifier=classifier)
    loaded.model.save_pretrained(directory)
    loaded.tokenizer.save_pretrained(directory)
