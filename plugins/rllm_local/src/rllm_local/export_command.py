"""`rllm export`: writes a run's model for other programs."""

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
    from rllm_local.export import export_model

    directory = export_model(run.expanduser(), form, output, dtype)
    click.echo(f"{form} is in {directory}")
