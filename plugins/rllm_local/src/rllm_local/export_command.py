"""`rllm export`: the model of a run for other programs."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "form",
    type=click.Choice(["hf", "merged", "adapter"]),
    required=True,
    help="hf: a folder that from_pretrained of transformers opens. merged: the same, of a LoRA run alone. adapter: the "
    "LoRA adapter, as peft opens it.",
)
@click.option("--output", type=click.Path(path_type=Path), help="Folder to write; by default RUN/export-FORM.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="Type of the weights of hf and merged. float32 keeps every bit of what was trained.",
)
def export(run: Path, form: str, output: Path | None, dtype: str) -> None:
    """Write the model of RUN into a folder: a run, one of its checkpoints, or a folder of a model or of peft's.

    A run's newest checkpoint counts. Nothing is overwritten, and nothing in RUN changes.

    \b
    For vLLM, llama.cpp, or anything that reads Hugging Face folders, in half the size:
      rllm export runs/rllm-training/default --to hf --dtype bfloat16
    Of a run with model.lora_rank, the adapter merged into its model:
      rllm export runs/rllm-training/default --to merged --output ./merged
    Or the adapter alone, for peft or for servers that switch between adapters:
      rllm export runs/rllm-training/default --to adapter
    What comes out is a model's name too:
      rllm eval guess --model ./merged
    """
    from rllm_local.export import export_model

    directory = export_model(run.expanduser(), form, output, dtype)
    click.echo(f"{form} is in {directory}")
