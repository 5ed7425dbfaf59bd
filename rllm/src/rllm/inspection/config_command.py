"""`rllm config`: show, explain and check a run's configuration, and print its JSON schema for editors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rllm.cli import (
    FLAGS,
    MODEL_FLAG,
    PLANNING_FLAGS,
    ROLE_FLAG,
    ROLE_KEY,
    ForgivingGroup,
    config_options,
    read_request,
)
from rllm.inspection.conversion import convert

if TYPE_CHECKING:
    from rllm.cli import Request
    from rllm.planning import RunPlan
    from rllm_core.data.types import Task


@click.group(cls=ForgivingGroup)
def config() -> None:
    """Show, explain and check a run's configuration. Convert a configuration from verl or rLLM.

    \b
    Show all values of a run with their origins:
      rllm config show guess --origin
    Explain a key, and list the plugins that use it:
      rllm config explain rllm.algorithm.eps_clip
    Run the checks of a run without starting it:
      rllm config validate my.yaml guess
    Convert a verl launch script to a configuration:
      rllm config convert run_grpo.sh > run.yaml
    """


config.add_command(convert)


@config.command()
@config_options(*PLANNING_FLAGS)
@click.option("--origin", is_flag=True, help="Print a table of every key with its value and origin.")
@click.option("--json", "as_json", is_flag=True, help="Print every key with its value and origin as JSON.")
def show(
    words: tuple[str, ...], model: str | None, files: tuple[str, ...], origin: bool, as_json: bool, **flags: Any
) -> None:
    """Print the whole configuration of a run as YAML, as it would be saved in its directory.

    \b
    Takes what `rllm train` takes:
      rllm config show guess --estimator rloo rllm.rollout.n=4
      rllm config show guess --origin | grep recipe
      rllm config show guess --json
    """
    from rllm.cli import list_values, plan_for, show_values
    from rllm.config import as_yaml

    plan = plan_for(read_request(words, model, files, flags))
    _warn(plan.warnings)
    if as_json:
        click.echo(json.dumps(list_values(plan, list(plan.composed.origins)), indent=2))
    elif origin:
        show_values(plan, list(plan.composed.origins))
    else:
        click.echo(as_yaml(plan.composed.build_saved_config()), nl=False)


@config.command()
@click.argument("key")
@config_options(*PLANNING_FLAGS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def explain(
    key: str, words: tuple[str, ...], model: str | None, files: tuple[str, ...], as_json: bool, **flags: Any
) -> None:
    """Explain KEY: its meaning, type and default, its value and origin, and the plugins that use it.

    For a section, list its keys. Add the arguments of `rllm train` to see the value in that run.

    \b
    Examples:
      rllm config explain rllm.rollout.n
      rllm config explain rllm.algorithm.eps_clip guess --loss reinforce
      rllm config explain rllm.algorithm
      rllm config explain rllm.rollout.n guess --json
    """
    from rllm.cli import plan_and_registry
    from rllm.inspection.explain import Explanation, explain_key
    from rllm_record.terminal import print_table

    plan, registry = plan_and_registry(read_request(words, model, files, flags))
    found = explain_key(key, plan, registry)
    if not isinstance(found, Explanation):
        if as_json:
            click.echo(json.dumps([option._asdict() for option in found], indent=2))
        else:
            print_table(("key", "type", "default", "meaning"), [tuple(option) for option in found])
        return
    flag = _find_flag(found.about.name, plan.backend.plugin.model_key)
    facts = found.facts | ({"flag": flag} if flag else {})
    if as_json:
        click.echo(json.dumps(found.about._asdict() | facts, indent=2))
        return
    click.echo(f"{found.about.name}: {found.about.description}\n")
    print_table((), list(facts.items()))


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
@config_options(*PLANNING_FLAGS)
def validate(file: Path, words: tuple[str, ...], model: str | None, files: tuple[str, ...], **flags: Any) -> None:
    """Check FILE as `rllm train --config FILE` would, and do not train. Exits with 2 when something is wrong.

    \b
    Examples:
      rllm config validate my.yaml
      rllm config validate my.yaml guess --backend local
    """
    from rllm.planning import load_plugins

    plan, train_tasks, val_tasks = check_run(read_request(words, model, (str(file), *files), flags))
    load_plugins(plan)
    _warn(plan.warnings)
    click.echo(
        f"{file} is valid: backend {plan.backend.name}, workflow {plan.workflow.plugin.name}, "
        f"estimator {plan.estimators.default.plugin.name}, loss {plan.losses.default.plugin.name}, "
        f"{len(train_tasks)} training and {len(val_tasks)} validation tasks"
    )


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON schema, for editors and programs.")
@click.option("--backend", metavar="NAME", default="local", show_default=True, help="Backend whose keys to include.")
def schema(as_json: bool, backend: str) -> None:
    """List every key with type, default and meaning; or give an editor the schema of a configuration file.

    \b
    For editors with a YAML language server:
      rllm config schema --json > rllm.schema.json
      and in the first line of a file:  # yaml-language-server: $schema=rllm.schema.json
    """
    from rllm.inspection.describe import editor_schema, list_options
    from rllm_core.plugins.registry import Registry
    from rllm_core.schema.run_config import RunConfig
    from rllm_record.terminal import print_table

    params = Registry.load().get("backend", backend).plugin.params
    if as_json:
        click.echo(json.dumps(editor_schema(params), indent=2, ensure_ascii=False))
        return
    options = [*list_options(RunConfig), *list_options(params)]
    print_table(("key", "type", "default", "meaning"), [tuple(option) for option in options])


def check_run(request: Request) -> tuple[RunPlan, Sequence[Task], Sequence[Task]]:
    """Check a run without starting it. Return its plan, its training tasks and its validation tasks.

    Raises:
        ConfigError: a run of the request would be rejected.
    """
    from rllm.cli import plan_for
    from rllm.planning import check_to_train
    from rllm.training import load_tasks

    plan = plan_for(request)
    train_tasks, val_tasks = load_tasks(plan, "train"), load_tasks(plan, "val")
    check_to_train(plan, train_tasks, val_tasks)
    return plan, train_tasks, val_tasks


def _find_flag(key: str, model_key: str) -> str:
    flags = {flag_key: f"--{name}" for name, (flag_key, _) in FLAGS.items()} | {model_key: f"--{MODEL_FLAG}"}
    flags[ROLE_KEY] = f"--{ROLE_FLAG} ROLE=NAME"
    return flags.get(key, "")


def _warn(lines: Any) -> None:
    for line in lines:
        click.echo(f"warning: {line}", err=True)
