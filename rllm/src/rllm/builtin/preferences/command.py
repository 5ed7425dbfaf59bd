"""`rllm prefer`: learn from better and worse completions, with the training loop of `rllm train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from rllm.cli.configuring import CommandLine, Request
from rllm.cli.row_command import read_row_request, row_options, train_on_rows
from rllm.cli.train import Start, start_options


@click.command()
@row_options("preferences")
@click.option("--loss", type=click.Choice(["dpo", "ipo", "kto"]), help="Loss, dpo by default. [option of stage prefer]")
@click.option(
    "--beta", type=float, metavar="X", help="Strength of the reference, 0.1 by default. [option of stage prefer]"
)
@start_options
def prefer(line: CommandLine, start: Start) -> int:
    """Learn from better and worse completions (DPO, IPO, KTO). The reference model is the model at the start.

    \b
    Each line of the file has a prompt and two completions, as text or as messages:
      {"prompt": "2+2=", "chosen": "4", "rejected": "5"}
    Train a model, and report the loss and the accuracy on other rows:
      rllm prefer --data pairs.jsonl --val-data val.jsonl --model ./some-hf-directory
    Learn from single completions with a label:
      {"prompt": "2+2=", "completion": "4", "label": true}
      rllm prefer --data labels.jsonl --loss kto --model ./some-hf-directory
    Ctrl-C finishes the current step, saves and stops. Continue later:
      rllm prefer --resume
    """
    return train_on_rows(read_prefer_request(*line), start, "--data FILE")


def read_prefer_request(
    words: Sequence[str], model: str | None, files: Sequence[str], flags: Mapping[str, Any]
) -> Request:
    """Take the command line of `rllm prefer` apart, as `read_row_request`."""
    options = {"preferences": ("max_length", "long_rows"), "prefer": ("loss", "beta")}
    return read_row_request("prefer", words, model, files, flags, options)
