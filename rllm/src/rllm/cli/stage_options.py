"""Flags that set options of one stage, such as `--beta`. All other stages of the run stay as configured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from rllm.config.layers import COMMAND_LINE, Layer, Tier, layer_from_dotted
from rllm.config.paths import ABSENT, split_key, value_at
from rllm.planning.plan import RunPlan
from rllm_core.errors import ConfigError

STAGES = "rllm.pipeline.stages"
StageOptions = Mapping[str, Mapping[str, Any]]
"""Options by the name of their stage."""
LENGTH_OPTIONS = ("max_length", "long_rows")
"""Names of the options of `length_options`."""
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def length_options(stage: str) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that adds the flags for the maximum length of rows, which are options of `stage`."""

    def decorate(function: FunctionT) -> FunctionT:
        function = click.option(
            "--long-rows",
            type=click.Choice(["cut", "drop", "error"]),
            help=f"Longer rows are cut off (default), dropped, or an error. [option of stage {stage}]",
        )(function)
        text = f"Maximum tokens of a row. The run's longest context is a limit too. [option of stage {stage}]"
        return click.option("--max-length", type=click.IntRange(2), metavar="N", help=text)(function)

    return decorate


def stage_options_layer(layers: Sequence[Layer], options: StageOptions) -> Layer:
    """Return a layer with the stages of `layers`, the last layer first, and with these options."""
    lists = (value_at(layer.tree, split_key(STAGES)) for layer in reversed(layers))
    stages = next(value for value in lists if value is not ABSENT)
    if isinstance(stages, list):
        stages = [_with_options(stage, options) for stage in stages]
    return layer_from_dotted({STAGES: stages}, COMMAND_LINE, Tier.COMMAND_LINE)


def check_stage_options(plan: RunPlan, options: StageOptions) -> None:
    """Check that the run's stages have these options. Other keys of rllm.pipeline may add or replace stages.

    Raises:
        ConfigError: a stage has another value.
    """
    for stage in plan.stages:
        for name, value in options.get(stage.registered.name, {}).items():
            if getattr(stage.params, name) != value:
                raise ConfigError(
                    "unused-key",
                    f"--{name.replace('_', '-')} {value} has no effect, because rllm.pipeline replaces or inserts "
                    f"stage {stage.registered.name!r}.",
                    f"Remove the flag, and write {{name: {stage.registered.name}, {name}: {value}}} in rllm.pipeline.",
                )


def _with_options(stage: Any, options: StageOptions) -> Any:
    """Return an entry of the list of stages with its options: a name, or a mapping with `name`."""
    entry = stage if isinstance(stage, Mapping) else {"name": stage}
    name = str(entry.get("name")).removeprefix("rllm/")
    return {**entry, **options[name]} if name in options else stage
