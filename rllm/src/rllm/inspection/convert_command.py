"""`rllm config convert`: convert a launch script or a configuration of verl or rLLM."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rllm.inspection.conversion import Converted
    from rllm.inspection.launch import Launch

YAML = (".yaml", ".yml")
LONGEST = 60
"""Characters of the first column; longer keys push the second aside."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def convert(file: Path) -> None:
    """Convert FILE, a launch script or a YAML file of verl or rLLM, to a configuration of rllm.

    The YAML goes to standard output. A report on every key, including keys without a counterpart, goes to
    standard error. The script is read and never run.

    \b
    Examples:
      rllm config convert run_grpo.sh > run.yaml
      rllm train --config run.yaml --dry-run
    """
    from rllm.config import as_yaml
    from rllm.inspection.conversion import convert as converted_from
    from rllm_core.plugins.registry import Registry

    launch = None
    unread: dict[str, str] = {}
    if file.suffix in YAML:
        given = _of_yaml(file)
    else:
        given, unread, launch = _of_script(file)
    converted = converted_from(given, Registry.load())
    converted.left_out |= unread
    click.echo(as_yaml(converted.tree()), nl=False)
    for line in _report(converted, given, launch):
        click.echo(line, err=True)


def _of_yaml(file: Path) -> dict[str, Any]:
    from rllm.config import read_config_text, read_yaml
    from rllm.inspection.conversion import iterate_leaves
    from rllm_core.errors import ConfigError

    tree = read_yaml(read_config_text(file), str(file))
    if not isinstance(tree, dict):
        raise ConfigError(
            "not-a-mapping",
            f"{file} is not a configuration: its top level is not a mapping.",
            "Name a YAML file of `key: value` lines.",
        )
    return dict(iterate_leaves(tree))


def _of_script(file: Path) -> tuple[dict[str, Any], dict[str, str], Launch]:
    """Keys with their values, words that cannot be read with the reason, and the launch itself."""
    from rllm.config import read_config_text, read_override
    from rllm.inspection.launch import read_launch
    from rllm_core.errors import ConfigError

    launch = read_launch(read_config_text(file), str(file))
    given: dict[str, Any] = dict(launch.options)
    unread = {word.text: f"{word.undecided}: set it in the file." for word in launch.overrides if word.undecided}
    for word in launch.overrides:
        if word.undecided:
            continue
        try:
            key, value = read_override(word.text)
        except ConfigError as error:
            unread[word.text] = error.message
        else:
            given[key] = value
    return given, unread, launch


def _report(converted: Converted, given: dict[str, Any], launch: Launch | None) -> Iterable[str]:
    from rllm.config import show_value

    yield f"Keys with another name ({len(converted.renamed)}):"
    yield from _table(converted.renamed)
    yield f"Keys that keep their name: {len(converted.kept)}"
    if converted.defaults:
        yield f"Defaults of {converted.backend}'s own trainer, where ours differ ({len(converted.defaults)}):"
        yield from _table({key: show_value(value) for key, value in converted.defaults.items()})
    if converted.left_out:
        yield f"Keys without a counterpart ({len(converted.left_out)}):"
        yield from _table(
            {f"{key}={show_value(given[key])}" if key in given else key: why for key, why in converted.left_out.items()}
        )
    if launch is not None and launch.environment:
        yield "Environment variables that the script sets; set those that you need:"
        yield from (f"  {name}={value}" for name, value in launch.environment.items())
    yield from converted.notes


def _table(rows: dict[str, str]) -> Iterable[str]:
    width = min(max(map(len, rows), default=0), LONGEST)
    return [f"  {left:<{width}}  {right}" for left, right in rows.items()]
