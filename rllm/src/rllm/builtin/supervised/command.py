"""`rllm sft`: fine-tune a model on examples, with the training loop of `rllm train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from rllm.cli.configuring import CommandLine, Request
from rllm.cli.row_command import read_row_request, row_options, train_on_rows
from rllm.cli.train import Start, start_options

DATA = "data.train_dataset"


@click.command(short_help="Fine-tune a model on examples.")
@row_options("examples")
@click.option(
    "--train-on",
    type=click.Choice(["assistant", "last", "all"]),
    help="Trained tokens: all assistant messages (default), the last one, or every token. [option of stage examples]",
)
@click.option(
    "--stored", metavar="DIRECTORY", help=f"Stored episodes to imitate: a run directory, or files of episodes. [{DATA}]"
)
@click.option("--min-reward", type=float, metavar="X", help="With --stored: use rollouts with at least this reward.")
@start_options
def sft(line: CommandLine, start: Start) -> int:
    """Fine-tune a model on examples (SFT): the loss is the mean of -log p over the trained tokens.

    \b
    Each line of the file has messages, or prompt and completion, or text:
      {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}
      {"prompt": "2+2=", "completion": "4"}
    Fine-tune a model, and report the loss on other rows:
      rllm sft --data train.jsonl --val-data val.jsonl --model ./some-hf-directory
    Set passes over the data, rows per step, and the learning rate:
      rllm sft --data train.jsonl --model ./some-hf-directory \\
        rllm.trainer.total_epochs=3 data.train_batch_size=16 training.learning_rate=1e-5
    Imitate the good rollouts of an earlier run:
      rllm sft --stored runs/rllm-training/guess-1 --min-reward 1 --model ./some-hf-directory
    Ctrl-C finishes the current step, saves and stops. Continue later:
      rllm sft --resume
    Train the result with rewards:
      rllm train ENV --model runs/rllm-sft/run-1/checkpoints/latest
    """
    return train_on_rows(read_sft_request(*line), start, "--data FILE or --stored DIRECTORY")


def read_sft_request(
    words: Sequence[str], model: str | None, files: Sequence[str], flags: Mapping[str, Any]
) -> Request:
    """Take the command line of `rllm sft` apart, as `read_row_request`."""
    stored, min_reward = flags.get("stored"), flags.get("min_reward")
    if stored is None and min_reward is not None:
        raise click.UsageError("--min-reward selects stored episodes: add --stored DIRECTORY.")
    options = {"examples": ("train_on", "max_length", "long_rows")}
    request = read_row_request("sft", words, model, files, flags, options)
    if stored is None:
        return request
    for name, why in (("data", "both say what to train on"), ("train_on", "differ: the sampled tokens are trained")):
        if flags.get(name) is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} and --stored {why}.")
    least = {} if min_reward is None else {"min_reward": min_reward}
    return replace(request, choices={**request.choices, DATA: {"name": "stored", "path": stored, **least}})
