"""The files of a package that calls an existing function: the data that each of its arguments receives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from rllm_core.errors import PluginError
from rllm_plugin_kit.scaffold.kinds import TEMPLATES, Template
from rllm_plugin_kit.scaffold.sources import Source


@dataclass(frozen=True, kw_only=True)
class Column:
    """An argument that receives data of a batch."""

    value: str
    """The expression in the package's call."""
    value_in_test: str
    """The same in the test, which has its own padded tensors."""
    need: str | None = None
    """The column that the plugin spec lists in `needs`."""


def _pad_column(name: str) -> Column:
    return Column(value=f"batch.pad(inputs.{name})", value_in_test=f"pad(inputs, inputs.{name})", need=name)


_GREEDY = "torch.tensor(inputs.greedy_rewards, dtype=torch.float32)"
COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        "token_level_rewards": Column(value="batch.rewards", value_in_test="rewards"),
        "response_mask": Column(value="batch.mask", value_in_test="mask"),
        "index": Column(value="batch.index", value_in_test="index"),
        "old_log_probs": _pad_column("old_logprobs"),
        "ref_log_prob": _pad_column("ref_logprobs"),
        "rollout_log_probs": _pad_column("sampling_logprobs"),
        "sum_pi_squared": _pad_column("sum_pi_squared"),
        "values": _pad_column("values"),
        "reward_baselines": Column(value=_GREEDY, value_in_test=_GREEDY, need="greedy_rewards"),
    }
)
"""Arguments of verl's estimators -> the data that they receive."""
LOSS_COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        "old_log_prob": Column(value="row.old_logprobs[None]", value_in_test="old"),
        "log_prob": Column(value="row.logprobs[None]", value_in_test="new"),
        "advantages": Column(value="row.advantages[None]", value_in_test="advantages"),
        "response_mask": Column(value="mask", value_in_test="mask"),
        "loss_agg_mode": Column(value='"token-mean"', value_in_test='"seq-mean-token-mean"'),
        "rollout_is_weights": Column(value="weights", value_in_test="torch.ones_like(mask)"),
    }
)
"""Arguments of verl's losses -> the data that they receive. A loss is called with one row at a time."""
COLUMNS_OF = {"estimator": COLUMNS, "loss": LOSS_COLUMNS}
REQUIRED = {
    "estimator": ("token_level_rewards", "response_mask"),
    "loss": ("log_prob", "advantages", "response_mask"),
}
"""Arguments without which a function is no plugin of the kind."""
DEFAULTS = {"gamma": 1.0, "lam": 1.0}
"""Arguments without a default in verl's functions, and the defaults in verl's trainer."""
CONFIG = "config"
"""The argument for verl's algorithm config."""
UNUSED = frozenset({"rollout_is_weights"})
"""Arguments that keep their default: weights that rllm applies in the update."""
LINE = 120
"""Maximum length of a line."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """An argument that becomes an option of the plugin."""

    name: str
    default: bool | int | float | str

    def declaration(self, function: str) -> str:
        """Return the lines of its field."""
        arguments = f'default={_literal(self.default)}, description="Argument of `{function}`."'
        field_of = f"    {self.name}: {type(self.default).__name__} = Field("
        line = f"{field_of}{arguments})"
        return line if len(line) <= LINE else f"{field_of}\n        {arguments}\n    )"


@dataclass(frozen=True, kw_only=True)
class Port:
    """A plugin that calls a function of a different library or of the author."""

    kind: str
    """The kind of the plugin: ``estimator`` or ``loss``."""
    source: Source
    arguments: tuple[str, ...]
    """Arguments that receive columns, options or the config, in the function's order."""
    options: tuple[Option, ...]
    has_config: bool
    scope: str = "group"
    """The scope of an estimator's advantages."""
    centres: bool = True
    """True if equal rewards give advantages of exactly 0."""
    is_exact: bool = True
    """True if a loss has the gradient of its value."""
    has_ratio: bool = True
    """True if a loss uses the old log-probs."""
    notes: tuple[str, ...] = field(default=())
    """Warnings for the author."""

    @property
    def template(self) -> Template:
        """The kind's data for this function."""
        option = self.options[0] if self.options else None
        config = f"name: $chosen, {option.name}: {_literal(option.default)}" if option else "name: $chosen"
        key = {"estimator": "adv_estimator", "loss": "loss_fn"}[self.kind]
        return Template(
            title=TEMPLATES[self.kind].title,
            summary=f"The function {self.source.name} of {self.source.package or 'the author'}.",
            train=TEMPLATES[self.kind].train,
            config=f"rllm:\n  algorithm:\n    {key}: {{{config}}}",
            dependencies=(*TEMPLATES["estimator"].dependencies[:-1], *TEMPLATES["loss"].dependencies[1:]),
        )

    @property
    def columns(self) -> Mapping[str, Column]:
        """The data that the kind's arguments can receive."""
        return COLUMNS_OF[self.kind]

    @property
    def needs(self) -> list[str]:
        """Columns that must be filled before the plugin runs, sorted."""
        named = (self.columns[name].need for name in self.arguments if name in self.columns)
        return sorted(need for need in named if need is not None)

    def values(self) -> dict[str, str]:
        """Return the values of the placeholders that only templates of ports have."""
        loaded = "load_original" if self.source.file is None else self.source.name
        config = ["load_config"] if self.has_config else []
        quoted = ", ".join(f'"{need}"' for need in self.needs)
        greedy = "greedy_rewards" in self.needs
        indent = 8 if self.kind == "estimator" else 12
        return {
            "origin": self.source.origin,
            "original": self.source.name,
            "call": f"{loaded}()" if self.source.file is None else loaded,
            "original_imports": ", ".join(sorted([loaded, *config])),
            "torch_import": "import torch\n" if greedy else "",
            "arguments": self._arguments(
                lambda column: column.value, "params.{name}", "load_config(params.config)", indent
            ),
            "test_arguments": self._arguments(lambda column: column.value_in_test, None, "load_config({})", 12),
            "options_imports": self._option_imports(),
            "option_fields": self._option_fields(),
            "scope": self.scope,
            "needs": f"        needs=frozenset({{{quoted}}}),\n" if self.needs else "",
            "needed": f"{{{quoted}}}" if self.needs else "()",
            "centres": "" if self.centres else "    centres = False  # Equal rewards can give a small remainder.\n",
            "greedy": _GREEDY_TASKS if greedy else "",
            "greedy_import": ("GREEDY_REWARD, " if greedy else ""),
            "index": _INDEX if "index" in self.arguments else "",
            "skip": self._skip(),
            "extra": "" if self.source.file else f'{self.source.package} = ["{self.source.requirement}"]\n',
            "find_spec": "" if self.source.file else "from importlib.util import find_spec\n",
            "only_find_spec": "" if self.source.file else "from importlib.util import find_spec\n\n",
            "pytest": "" if self.source.file else "import pytest\n",
            "package": self.source.package,
            "source_module": self.source.module,
            "config_function": CONFIG_FUNCTIONS[self.kind] if self.has_config else "",
            "gradient": "" if self.is_exact else '    gradient = "surrogate"  # The function detaches a factor.\n',
            "has_ratio": "" if self.has_ratio else "        has_ratio=False,\n",
        }

    def _arguments(self, write: Callable[[Column], str], option: str | None, config: str, indent: int) -> str:
        lines = []
        for name in self.arguments:
            if name in self.columns:
                lines.append(f"{name}={write(self.columns[name])}")
            elif name == CONFIG:
                lines.append(f"{name}={config}")
            elif option is not None:
                lines.append(f"{name}={option.format(name=name)}")
            elif name in DEFAULTS:
                lines.append(f"{name}={DEFAULTS[name]}")
        return "\n".join(f"{' ' * indent}{line}," for line in lines)

    def _option_imports(self) -> str:
        lines = ["from typing import Any\n"] if self.has_config else []
        lines += ["from pydantic import Field"] if self.options or self.has_config else []
        return "\n".join([*lines, "from rllm_core.contracts import Params\n"])

    def _option_fields(self) -> str:
        lines = [option.declaration(self.source.name) for option in self.options]
        if self.has_config:
            description = f"Fields of verl's {CONFIG_CLASSES[self.kind]}."
            lines.append(f'    config: dict[str, Any] = Field(default_factory=dict, description="{description}")')
        return "\n".join(lines) or f'    """`{self.source.name}` has no options."""'

    def _skip(self) -> str:
        if self.source.file is not None:
            return ""
        package = self.source.package
        return (
            f'pytestmark = pytest.mark.skipif(find_spec("{package}") is None, '
            f'reason="{package} is not installed: pip install {package}")\n\n'
        )


def bind_arguments(source: Source, kind: str) -> Port:
    """Return a port in which every argument of the function receives data, an option, or its default.

    Raises:
        PluginError: an argument cannot be filled.
    """
    arguments, options, columns = [], [], COLUMNS_OF[kind]
    for name, parameter in inspect.signature(source.function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in UNUSED - columns.keys():
            continue
        default = DEFAULTS.get(name) if parameter.default is parameter.empty else parameter.default
        if name == CONFIG and source.package != "verl" and parameter.default is None:
            continue
        if name not in columns and isinstance(default, bool | int | float | str):
            options.append(Option(name=name, default=default))
        elif name not in columns and not (name == CONFIG and source.package == "verl"):
            raise PluginError(
                "argument-not-available",
                f"{source.name} has the argument `{name}`, which rllm cannot fill.",
                "In a file, write a function without it that calls this one, and port it: "
                "--from my_file.py:my_function.",
            )
        arguments.append(name)
    missing = [name for name in REQUIRED[kind] if name not in arguments]
    if missing:
        raise PluginError(
            "argument-not-available",
            f"{source.name} has no argument `{missing[0]}`, so it cannot be a plugin of the kind {kind}.",
            f"Name a function with the arguments of verl: {', '.join(REQUIRED[kind])}.",
        )
    return Port(
        kind=kind,
        source=source,
        arguments=tuple(arguments),
        options=tuple(options),
        has_config=CONFIG in arguments,
    )


def _literal(value: object) -> str:
    """Return a default as ruff formats it."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


_INDEX = "        index = np.array([group.group_id for group in groups for _ in group.trajectories], object)\n"
_GREEDY_TASKS = """\
        for trajectory in (each for group in groups for each in group.trajectories):
            trajectory.info[GREEDY_REWARD] = 0.5
"""
CONFIG_CLASSES = {"estimator": "AlgoConfig", "loss": "ActorConfig"}
"""verl's class for the argument `config`, by kind."""
CONFIG_FUNCTIONS = {
    "estimator": '''

def load_config(fields: dict[str, Any]) -> Any:
    """Return verl's algorithm config with these fields."""
    from verl.trainer.config import AlgoConfig

    return AlgoConfig(**fields)
''',
    "loss": '''

def load_config(fields: dict[str, Any]) -> Any:
    """Return verl's actor config with these fields."""
    from verl.workers.config import ActorConfig

    return ActorConfig(**{"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, **fields})
''',
}
