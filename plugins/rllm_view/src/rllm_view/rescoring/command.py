"""`rllm rescore`: stored episodes under other estimators and groupings; evaluations under other rewards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rllm.cli import ROLE_FLAG, require_roles

if TYPE_CHECKING:
    from rllm_view.rescoring.rescore import Request

SCHEMA_VERSION = 2
"""Version of the output of ``--json``. It is raised whenever a name changes."""


@click.command()
@click.argument("episodes", type=click.Path(path_type=Path))
@click.option(
    "--estimator",
    "estimators",
    multiple=True,
    metavar="NAME",
    help="Estimator. May be repeated. The first estimator is the reference.",
)
@click.option(
    f"--{ROLE_FLAG}",
    "role_estimators",
    multiple=True,
    metavar="ROLE=NAME",
    callback=require_roles,
    help="Estimator of one role, instead of the estimators in --estimator. May be repeated.",
)
@click.option("--grouping", metavar="NAME", help="Trajectory grouping, instead of the run's.")
@click.option("--rejection", metavar="NAME", help="Rejection mode. Without it no group is rejected.")
@click.option(
    "--on-missing-reward",
    type=click.Choice(["error", "drop", "zero"]),
    help="Action for a missing reward, instead of the run's.",
)
@click.option(
    "--import-module",
    "modules",
    multiple=True,
    metavar="NAME",
    help="Module of the current folder that registers plugins, in addition to the run's modules. May be repeated.",
)
@click.option(
    "--groups",
    metavar="N",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Number of groups to list with every trajectory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, every group included.")
@click.option(
    "--reward",
    "rewards",
    multiple=True,
    metavar="NAME|FILE.py:FUNCTION",
    help="Score saved rollouts with this reward. May be repeated.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="With --reward: folder to save the result to, in the same format.",
)
def rescore(
    episodes: Path, groups: int, as_json: bool, rewards: tuple[str, ...], save: Path | None, **options: Any
) -> None:
    """Show the advantages of stored EPISODES with other estimators or rewards.

    EPISODES is a run folder, its episodes/ folder, or one file.

    Nothing is generated, trained or written. The options replace values of the run's config. With fewer than two
    --estimator, the run's own estimator is the reference.

    \b
    A run keeps its episodes with rllm.record=tokens. Then:
      rllm rescore runs/rllm-training/default --estimator rloo
      rllm rescore runs/rllm-training/default --estimator grpo --estimator rloo --estimator reinforce
    With options, as in a configuration:
      rllm rescore RUN --estimator grpo --estimator '{name: grpo, norm_adv_by_std_in_grpo: false}'
    A folder of `rllm eval --save`, with a different reward:
      rllm rescore evals/first --reward exact
    A folder of `rllm gateway episodes`, scored for training:
      rllm rescore sessions --reward exact --save scored
    """
    if rewards:
        _rescore_by_rewards(episodes.expanduser(), rewards, _alone(options), save, as_json)
        return
    if save is not None:
        raise click.UsageError("--save goes with --reward.")
    import asyncio

    from rllm.evaluation.progress import ProgressReport
    from rllm_view.api.as_json import as_json as to_json
    from rllm_view.rescoring.rescore import rescore
    from rllm_view.rescoring.summary import reproduction_of, summaries_of
    from rllm_view.rescoring.terminal_report import print_report

    request = _request(episodes, **options)
    with ProgressReport() as progress:
        result = asyncio.run(rescore(request, progress=progress))
    summaries = summaries_of(result)
    if as_json:
        data = {
            "schema_version": SCHEMA_VERSION,
            "setups": [setup.label for setup in result.setups],
            "reproduction": reproduction_of(result),
            "roles": summaries,
            "steps": result.steps,
            "groups": result.groups,
        }
        click.echo(to_json(data).decode())
    else:
        print_report(result, summaries, groups)


def _rescore_by_rewards(
    folder: Path, rewards: tuple[str, ...], modules: tuple[str, ...], save: Path | None, as_json: bool
) -> None:
    from rllm_view.rescoring.rewards import rescore_evaluation, rescore_sessions
    from rllm_view.rescoring.source import step_files_in

    score = rescore_sessions if step_files_in(folder) else rescore_evaluation
    score(folder, rewards, modules, save, as_json)


def _alone(options: dict[str, Any]) -> tuple[str, ...]:
    """The modules to import; other options are for advantages, which a reward knows nothing of."""
    modules: tuple[str, ...] = options.pop("modules")
    if given := [name for name, value in options.items() if value]:
        raise click.UsageError(f"--reward scores saved attempts, and goes with no {', '.join(given)}.")
    return modules


def _request(
    episodes: Path,
    estimators: tuple[str, ...],
    role_estimators: tuple[str, ...],
    grouping: str | None,
    rejection: str | None,
    on_missing_reward: Any,
    modules: tuple[str, ...],
) -> Request:
    from rllm.config import read_override
    from rllm_view.rescoring.rescore import Request

    def choice(kind: str, word: str) -> Any:
        """Read as a configuration's value on the command line is."""
        return read_override(f"{kind}={word}")[1]

    by_role: dict[str, Any] = {}
    for word in role_estimators:
        role, chosen = read_override(word)
        by_role[role] = chosen
    return Request(
        path=episodes.expanduser(),
        estimators=[choice("estimator", word) for word in estimators],
        role_estimators=by_role,
        grouping=None if grouping is None else choice("grouping", grouping),
        rejection=None if rejection is None else choice("rejection", rejection),
        on_missing_reward=on_missing_reward,
        import_modules=modules,
    )
