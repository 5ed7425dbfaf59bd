"""`rllm prefer`: learn from better and worse completions, with the training loop of `rllm train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from rllm.cli.configuring import (
    OF_SFT,
    SFT_FLAGS,
    STORED,
    Request,
    config_options,
    read_sft_request,
)
from rllm.cli.stage_options import STAGES, check_stage_options, length_options
from rllm.cli.train import Start, start_options, train_or_check
from rllm.planning.plan import RunPlan
from rllm_core.errors import ConfigError

FLAGS = {name: entry for name, entry in SFT_FLAGS.items() if name != STORED}
DEFAULTS = OF_SFT | {
    "rllm.trainer.project_name": "rllm-prefer",
    "rllm.algorithm.loss_fn": "reinforce",
    "rllm.algorithm.loss_agg_mode": "token-sum",
    STAGES: ["preferences", "build_batch", "prefer", "update", "log"],
}
"""Default values of `rllm prefer`."""


@click.command()
@config_options(*FLAGS, table=FLAGS, words="[KEY=VALUE]...")
@click.option("--loss", type=click.Choice(["dpo", "ipo", "kto"]), help="Loss, dpo by default. [option of stage prefer]")
@click.option(
    "--beta", type=float, metavar="X", help="Strength of the reference, 0.1 by default. [option of stage prefer]"
)
@length_options("preferences")
@start_options
def prefer(
    words: tuple[str, ...],
    model: str | None,
    files: tuple[str, ...],
    resume: bool,
    overwrite: bool,
    dry_run: bool,
    everything: bool,
    loss: str | None,
    beta: float | None,
    **flags: str | None,
) -> int:
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
    start = Start(resume, overwrite, dry_run, everything)
    options = {name: value for name, value in (("loss", loss), ("beta", beta)) if value is not None}
    request = read_prefer_request(words, model, files, flags, options)
    return train_or_check(lambda: _plan(request, start), start)


def _plan(request: Request, start: Start) -> RunPlan:
    plan = start.plan(request)
    if plan.preferences is None:
        raise ConfigError(
            "not-for-preferences",
            "rllm.pipeline of this run has no stage `prefer`, so the run does not learn from preferences.",
            "Remove rllm.pipeline, or use `rllm train`.",
        )
    check_stage_options(plan, request.stage_options)
    if plan.train_dataset is None:
        raise ConfigError("no-training-tasks", "There are no preferences.", "Add --data FILE.")
    return plan


def read_prefer_request(
    words: Sequence[str],
    model: str | None,
    files: Sequence[str],
    flags: Mapping[str, str | None],
    options: Mapping[str, Any],
) -> Request:
    """Take the command line of `rllm prefer` apart. `options` are the given options of stage `prefer`."""
    request = read_sft_request(words, model, files, flags)
    by_stage = {"preferences": request.stage_options.get("examples", {}), "prefer": options}
    chosen = {stage: of_stage for stage, of_stage in by_stage.items() if of_stage}
    return replace(request, defaults=DEFAULTS, defaults_of="rllm prefer", stage_options=chosen)
