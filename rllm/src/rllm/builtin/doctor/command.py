"""`rllm doctor`: the faults of a run."""

from __future__ import annotations

from pathlib import Path

import click

from rllm_record.store.fetching import RunPath


@click.command()
@click.argument("run", type=RunPath())
@click.option(
    "--rollouts",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIRECTORY",
    help="Rollouts of a run of verl (rollout_data_dir) or TRL (completions), if they are not in RUN.",
)
@click.option("--json", "is_json", is_flag=True, help="Print the findings and the rules that lack data as JSON.")
def doctor(run: Path, rollouts: Path | None, is_json: bool) -> int:
    """Find the faults of RUN: the evidence, and the key to change, the most harmful fault first.

    RUN is a run directory, also of a run that still trains. It can also be an output directory of TRL, the .jsonl file
    of verl's file logger, or an output directory of prime-rl. More rules apply to a run with rllm.record=tokens.

    The exit code is 1 if a rule finds a fault, and 0 if none does. A finding describes the run so far. It does not
    predict the rest of the run.

    \b
    Examples:
      rllm doctor runs/rllm-training/guess-1
      rllm doctor runs/rllm-training/guess-1 --json
      rllm doctor grpo-output                                   (TRL)
      rllm doctor project/experiment.jsonl --rollouts rollouts   (verl)
    Warn or stop during a run:
      rllm train guess rllm.trainer.observers=[doctor]
      rllm train guess 'rllm.trainer.observers=[{name: doctor, on_finding: stop}]'
    """
    import json

    from rllm.builtin.doctor.catalog import RULES
    from rllm.builtin.doctor.reading import read_run
    from rllm.builtin.doctor.report import as_json, print_diagnosis
    from rllm.builtin.doctor.rule import diagnose

    diagnosis = diagnose(read_run(run.expanduser(), rollouts), RULES)
    if is_json:
        click.echo(json.dumps(as_json(diagnosis), indent=1, ensure_ascii=False))
    else:
        print_diagnosis(diagnosis)
    return int(bool(diagnosis.findings))
