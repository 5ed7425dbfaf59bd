"""`rllm sft`: fine-tune a model on examples, with the training loop of `rllm train`."""

from __future__ import annotations

import click

from rllm.cli.configuring import SFT_FLAGS, Request, config_options, read_sft_request
from rllm.cli.stage_options import check_stage_options, length_options
from rllm.cli.train import Start, start_options, train_or_check
from rllm.planning.plan import RunPlan
from rllm_core.errors import ConfigError


@click.command()
@config_options(*SFT_FLAGS, table=SFT_FLAGS, words="[KEY=VALUE]...")
@click.option(
    "--train-on",
    type=click.Choice(["assistant", "last", "all"]),
    help="Trained tokens: all assistant messages (default), the last one, or every token. [option of stage examples]",
)
@length_options("examples")
@click.option("--min-reward", type=float, metavar="X", help="With --stored: use rollouts with at least this reward.")
@start_options
def sft(
    words: tuple[str, ...],
    model: str | None,
    files: tuple[str, ...],
    resume: bool,
    overwrite: bool,
    dry_run: bool,
    everything: bool,
    **flags: str | None,
) -> int:
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
    start = Start(resume, overwrite, dry_run, everything)
    request = read_sft_request(words, model, files, flags)
    return train_or_check(lambda: _plan(request, start), start)


def _plan(request: Request, start: Start) -> RunPlan:
    plan = start.plan(request)
    if plan.examples is None:
        raise ConfigError(
            "not-for-examples",
            "rllm.pipeline of this run has no stage `supervise`, so the run does not learn from examples.",
            "Remove rllm.pipeline, or use `rllm train`.",
        )
    check_stage_options(plan, request.stage_options)
    if plan.train_dataset is None:
        raise ConfigError("no-training-tasks", "There are no examples.", "Add --data FILE or --stored DIRECTORY.")
    return plan
