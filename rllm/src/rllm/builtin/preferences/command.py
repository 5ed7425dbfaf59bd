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
@click.option(
    "--loss",
    type=click.Choice(["dpo", "ipo", "kto", "reward_model"]),
    help="Loss, dpo by default. reward_model trains a reward model. [option of stage prefer]",
)
@click.option(
    "--beta", type=float, metavar="X", help="Strength of the reference, 0.1 by default. [option of stage prefer]"
)
@click.option(
    "--center-rewards-coefficient",
    type=float,
    metavar="X",
    help="Weight of the loss that keeps the mean score of a reward model near 0. [option of stage reward_model]",
)
@start_options
def prefer(line: CommandLine, start: Start) -> int:
    """Learn from better and worse completions (DPO, IPO, KTO). The reference model is the model at the start.
    Or train a reward model.

    \b
    Each line of the file has a prompt and two completions, as text or as messages:
      {"prompt": "2+2=", "chosen": "4", "rejected": "5"}
    Train a model, and report the loss and the accuracy on other rows:
      rllm prefer --data pairs.jsonl --val-data val.jsonl --model ./some-hf-directory
    Learn from single completions with a label:
      {"prompt": "2+2=", "completion": "4", "label": true}
      rllm prefer --data labels.jsonl --loss kto --model ./some-hf-directory
    Train a reward model for `--reward model:DIRECTORY`:
      rllm prefer --data pairs.jsonl --loss reward_model --model ./some-hf-directory
    Ctrl-C finishes the current step, saves and stops. Continue later:
      rllm prefer --resume
      rllm prefer --loss reward_model --resume
    """
    return train_on_rows(read_prefer_request(*line), start, "--data FILE")


def read_prefer_request(
    words: Sequence[str], model: str | None, files: Sequence[str], flags: Mapping[str, Any]
) -> Request:
    """Take the command line of `rllm prefer` apart, as `read_row_request`."""
    lengths = ("max_length", "long_rows")
    options: dict[str, Sequence[str]] = {"preferences": lengths, "prefer": ("loss", "beta")}
    objective, unused = "prefer", "center_rewards_coefficient"
    if flags.get("loss") == "reward_model":
        options = {"reward_model": (*lengths, "center_rewards_coefficient")}
        objective, unused = "reward_model", "beta"
    if flags.get(unused) is not None:
        raise click.UsageError(f"--{unused.replace('_', '-')} is no option of --loss {flags.get('loss') or 'dpo'}.")
    return read_row_request(objective, words, model, files, flags, options)
