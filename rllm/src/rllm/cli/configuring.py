"""The flags and arguments that `rllm train` and `rllm eval` share. Each flag is a short name for a config key.

Installed objectives add flags to `rllm train`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from rllm.config.choices import OBJECTIVE_KEY, chosen_backend, registry_for
from rllm.config.compose import Composed, compose
from rllm.config.layers import COMMAND_LINE, Layer, Tier, layer_from_file, layer_from_keys, layers_from_overrides
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm.training.starting import plan_run
from rllm_core.contracts.chosen import FAMILY
from rllm_core.contracts.objective import ObjectiveFlag, ObjectivePlugin
from rllm_core.plugins.registry import Registry

ROLE_FLAG = "role-estimator"


def require_roles(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """A callback of click's: each word is ROLE=NAME, and no role is given twice."""
    roles = [word.partition("=")[0] for word in words]
    for role, word in zip(roles, words, strict=True):
        if not role or "=" not in word or word.endswith("="):
            raise click.UsageError(f"--{ROLE_FLAG} is given {word!r}; it takes ROLE=NAME, such as judge=reinforce.")
        if roles.count(role) > 1:
            raise click.UsageError(f"--{ROLE_FLAG}: role {role!r} is given twice.")
    return words


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

FLAGS = {
    "backend": ("rllm.backend", "Backend, by name."),
    "profile": ("rllm.profile", "Settings of the backend for one kind of machine, by name."),
    "estimator": ("rllm.algorithm.adv_estimator", "Advantage estimator, by name."),
    "grouping": ("rllm.transform.grouping", "Trajectory grouping, by name."),
    "rejection": ("rllm.rejection_sample.mode", "Rejection mode, by name; switches rejection on."),
    "sampler": ("rllm.sampler", "Sampler of training tasks, by name."),
    "loss": ("rllm.algorithm.loss_fn", "Policy loss, by name."),
    "seed": ("rllm.trainer.seed", "Seed of every random draw."),
    "data": ("data.train_dataset", "Tasks to train on: a file, or a dataset by name."),
    "val-data": ("data.val_dataset", "Tasks to validate on: a file, or a dataset by name."),
    "reward": ("rllm.reward", "Reward, by name or as a function in a file; may be repeated."),
}
"""Flag to its config key and meaning. `--model` has a key of the backend's."""
MODEL_FLAG = "model"
ROLE_KEY = "rllm.algorithm.estimator_map"
WORKFLOW_KEY = "rllm.workflow.name"
TOOLS_KEY = "rllm.workflow.workflow_args.tools"
AGENT_KEY = "rllm.workflow.workflow_args.agent"
PLANNING_FLAGS = {
    **FLAGS,
    ROLE_FLAG: (f"{ROLE_KEY}.ROLE", "Estimator of one role; may be repeated."),
    "tools": (TOOLS_KEY, "Functions that the model may call, separated by commas. Chooses workflow tool_calling."),
    "agent": (AGENT_KEY, "Your agent, with any OpenAI, Anthropic or Google client. Chooses workflow agent."),
    "sandbox": ("rllm.sandbox", "Sandbox in which the agent and the tests of a task run, by name."),
    "objective": ("rllm.objective", "Objective, by name (`rllm plugins list --kind objective`); may be repeated."),
    "teacher": (
        "rllm.teacher",
        "Model to learn from: a directory, a server's address, or a teacher by name. SOURCE=TEACHER: for tasks with "
        "this data source. You can repeat it.",
    ),
}
"""All flags that configure training."""
METAVARS = {"seed": "N", "data": "FILE|NAME", "val-data": "FILE|NAME", ROLE_FLAG: "ROLE=NAME"}
METAVARS |= {"reward": "NAME|FILE.py:FUNCTION", "tools": "FILE.py:FUNCTION,…", "agent": "FILE.py:FUNCTION"}
METAVARS |= {"teacher": "[SOURCE=]DIRECTORY|URL|NAME"}
TOOL_WORKFLOW = "tool_calling"
"""The workflow that ``--tools`` chooses."""
AGENT_WORKFLOW = "agent"
"""The workflow that ``--agent`` chooses."""
OBJECTIVE_FLAG = "objective"
BY_SOURCE = "by_source"
"""The teacher that ``--teacher SOURCE=TEACHER`` chooses."""
OF_SOURCE = re.compile(r"([\w.-]+)=(.+)")
VERBATIM = ("data", "val-data")
"""Flags whose words are paths, which need no escaping in the grammar of ``key=value`` words."""


@dataclass(frozen=True)
class Request:
    """A command line, taken apart."""

    environment: str | None
    model: str | None
    files: Sequence[str]
    overrides: Sequence[str]
    """``key=value`` overrides. The overrides made from flags come first, so that an explicit key wins."""
    choices: Mapping[str, Any] = field(default_factory=dict)
    """Values of flags that are not written in the grammar of overrides, by key. `overrides` win over them."""


class CommandLine(NamedTuple):
    """The values of `config_options` and of a command's own flags, except the flags of its start."""

    words: Sequence[str]
    model: str | None
    files: Sequence[str]
    flags: Mapping[str, Any]
    """By name, with underscores."""


def config_options(
    *names: str, table: Mapping[str, tuple[str, str]] = PLANNING_FLAGS, words: str = "[ENV] [KEY=VALUE]..."
) -> Callable[[FunctionT], FunctionT]:
    """Add arguments, `--config`, `--model` and the named flags of `table` to a command. `words` is their metavar."""

    def decorate(function: FunctionT) -> FunctionT:
        for name in reversed(names):
            key, meaning = table[name]
            # A command without training has only one set of tasks.
            spellings = ["--val-data", "--data"] if name == "val-data" and "data" not in names else [f"--{name}"]
            shown: dict[str, Any] = {"metavar": METAVARS.get(name, "NAME"), "help": f"{meaning} [{key}]"}
            shown |= {
                "callback": require_roles if name == ROLE_FLAG else None,
                "multiple": name in ("reward", "teacher", OBJECTIVE_FLAG, ROLE_FLAG),
            }
            function = click.option(*spellings, **shown)(function)
        function = click.option(
            "--model",
            metavar="NAME",
            help="`tiny`, a model directory, a checkpoint or a hub id. [the backend's model key]",
        )(function)
        function = click.option(
            "--config", "files", multiple=True, metavar="FILE", help="YAML file of config values; may be repeated."
        )(function)
        return click.argument("words", nargs=-1, metavar=words)(function)

    return decorate


def read_request(words: Sequence[str], model: str | None, files: Sequence[str], flags: Mapping[str, Any]) -> Request:
    """Take the words apart: the first may name the environment, all others are ``key=value``."""
    environment = words[0] if words and "=" not in words[0] else None
    overrides = [f"{ROLE_KEY}.{choice}" for choice in flags.get(ROLE_FLAG.replace("-", "_"), ())]
    given = {name: flags.get(name.replace("-", "_")) for name in FLAGS}
    words_of_flags = {name: word for name, word in given.items() if isinstance(word, str)}
    overrides += [f"{FLAGS[name][0]}={word}" for name, word in words_of_flags.items() if name not in VERBATIM]
    choices: dict[str, Any] = {FLAGS[name][0]: words_of_flags[name] for name in VERBATIM if name in words_of_flags}
    if rewards := flags.get("reward"):
        choices[FLAGS["reward"][0]] = [f"python:{word}" if _is_in_file(word) else word for word in rewards]
    if (tools := flags.get("tools")) is not None:
        choices |= {TOOLS_KEY: [word.strip() for word in tools.split(",")], WORKFLOW_KEY: TOOL_WORKFLOW}
    if (agent := flags.get("agent")) is not None:
        if tools is not None:
            raise click.UsageError("--agent and --tools choose two different workflows. Give the tools to your agent.")
        choices |= {AGENT_KEY: agent, WORKFLOW_KEY: AGENT_WORKFLOW}
    if teachers := flags.get("teacher"):
        choices["rllm.teacher"] = read_teachers(teachers)
    if (sandbox := flags.get("sandbox")) is not None:
        choices["rllm.sandbox"] = sandbox
    objectives = [*flags.get(OBJECTIVE_FLAG, ())]
    if any(value is not None for name, value in flags.items() if name.replace("_", "-") not in PLANNING_FLAGS):
        by_flags, values = read_objectives(flags, choices)
        objectives, choices = [*by_flags, *objectives], {**choices, **values}
    if objectives:
        choices[OBJECTIVE_KEY] = objectives[0] if len(objectives) == 1 else objectives
    if flags.get("rejection") is not None:
        overrides.append("rllm.rejection_sample.enable=true")
    words = [*overrides, *words[environment is not None :]]
    return Request(environment, model, files, words, choices)


def read_teachers(words: Sequence[str]) -> str | dict[str, Any]:
    """Return the value of ``rllm.teacher``: one teacher, or a teacher for each data source (SOURCE=TEACHER)."""
    pairs = [match.groups() for word in words if (match := OF_SOURCE.fullmatch(word))]
    if len(pairs) < len(words) and len(words) > 1:
        raise click.UsageError("Several --teacher need a data source each: --teacher SOURCE=TEACHER.")
    if repeated := [source for source, _ in pairs if [other for other, _ in pairs].count(source) > 1]:
        raise click.UsageError(f"--teacher {repeated[0]}=… is set twice. Remove one of them.")
    if not pairs:
        return read_teacher(words[0])
    return {"name": BY_SOURCE, "teachers": {source: read_teacher(word) for source, word in pairs}}


def read_teacher(word: str) -> str:
    """Return the teacher's name in config: teacher ``server`` for an address, teacher ``model`` for a path."""
    if word.startswith(("http://", "https://")):
        return f"server{FAMILY}{word}"
    is_path = "/" in word.partition(FAMILY)[0] or Path(word).expanduser().exists()
    return f"model{FAMILY}{word}" if is_path else word


def _is_in_file(reward: str) -> bool:
    """True if a reward is ``FILE.py:FUNCTION``. The reward ``python`` handles these names."""
    return reward.partition(FAMILY)[0].endswith(".py")


def plan_for(request: Request, lower_layers: Sequence[Layer] = ()) -> RunPlan:
    """Compose and resolve a request. `lower_layers` are layers under the user's own, such as a resumed run's config."""
    return plan_and_registry(request, lower_layers)[0]


def run_plan_for(request: Request, *, resume: bool, overwrite: bool) -> RunPlan:
    """Return the plan as `plan_for`, with the run's name, and its saved values beneath if it is resumed."""
    return plan_run(lambda lower_layers: _composed_for(request, lower_layers), resume=resume, overwrite=overwrite)


def plan_and_registry(request: Request, lower_layers: Sequence[Layer] = ()) -> tuple[RunPlan, Registry]:
    """Return the plan as `plan_for`, and its registry."""
    composed, registry = _composed_for(request, lower_layers)
    return make_plan(composed, registry), registry


def _composed_for(request: Request, lower_layers: Sequence[Layer]) -> tuple[Composed, Registry]:
    layers = [*lower_layers, *(layer_from_file(file) for file in request.files)]
    overrides = layers_from_overrides(request.overrides)
    named = {} if request.environment is None else {"rllm.env.name": request.environment}
    layers.append(layer_from_keys({**named, **request.choices}, COMMAND_LINE, Tier.COMMAND_LINE))
    registry = registry_for([*layers, *overrides])
    if request.model is not None:
        key = chosen_backend(registry, [*layers, *overrides]).model_key
        layers.append(layer_from_keys({key: request.model}, COMMAND_LINE, Tier.COMMAND_LINE))
    layers += overrides
    return compose(registry, layers), registry


def objective_flags() -> Iterator[tuple[ObjectiveFlag, ObjectivePlugin]]:
    """Yield the flags of all installed objectives. This loads the plugins."""
    for entry in Registry.load().all("objective"):
        if entry.plugin.flag is not None:
            yield entry.plugin.flag, entry.plugin


class TrainCommand(click.Command):
    """A command with the flags of installed objectives."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {option for parameter in self.params for option in parameter.opts}
        # Plugins are loaded only for an unknown flag, which may belong to a plugin, or to list all flags.
        if any(word.startswith("-") and word.partition("=")[0] not in known for word in args):
            self.params += [
                click.Option([f"--{flag.name}"], metavar=flag.metavar, help=f"{objective.summary} [{flag.key}]")
                for flag, objective in objective_flags()
                if f"--{flag.name}" not in known
            ]
        return super().parse_args(ctx, args)


def read_objectives(flags: Mapping[str, Any], choices: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the objectives that flags choose besides ``--objective``, and the values of their keys.

    Args:
        flags: values of all flags by name, with underscores.
        choices: values of other flags by key.
    """
    names: list[str] = []
    values: dict[str, Any] = {}
    for flag, objective in objective_flags():
        if (text := flags.get(flag.name.replace("-", "_"))) is None:
            continue
        if flag.key in choices:
            raise click.UsageError(f"--{flag.name} and a different flag both set {flag.key}.")
        names.append(objective.name)
        values[flag.key] = flag.value(text)
    return names, values
