"""The files of a package that calls an existing function: which column each of its arguments receives."""

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
    """The expression in the estimator."""
    value_in_test: str
    """The same in the test, which pads the columns itself."""
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
    """A package's estimator that calls a function of others."""

    source: Source
    arguments: tuple[str, ...]
    """Arguments that receive columns, options or the config, in the function's order."""
    options: tuple[Option, ...]
    has_config: bool
    scope: str = "group"
    centres: bool = True
    notes: tuple[str, ...] = field(default=())
    """Warnings for the author."""

    @property
    def template(self) -> Template:
        """The kind's data for this function."""
        option = self.options[0] if self.options else None
        config = f"name: $chosen, {option.name}: {_literal(option.default)}" if option else "name: $chosen"
        return Template(
            title="Advantage estimator",
            summary=f"The function {self.source.name} of {self.source.package or 'the author'}.",
            train=TEMPLATES["estimator"].train,
            config=f"rllm:\n  algorithm:\n    adv_estimator: {{{config}}}",
            dependencies=(*TEMPLATES["estimator"].dependencies[:-1], *TEMPLATES["loss"].dependencies[1:]),
        )

    @property
    def needs(self) -> list[str]:
        """Columns that must be filled before the estimator runs, sorted."""
        named = (COLUMNS[name].need for name in self.arguments if name in COLUMNS)
        return sorted(need for need in named if need is not None)

    def values(self) -> dict[str, str]:
        """Return the values of the placeholders that only templates of ports have."""
        loaded = "load_original" if self.source.file is None else self.source.name
        config = ["load_config"] if self.has_config else []
        quoted = ", ".join(f'"{need}"' for need in self.needs)
        greedy = "greedy_rewards" in self.needs
        return {
            "origin": self.source.origin,
            "original": self.source.name,
            "call": f"{loaded}()" if self.source.file is None else loaded,
            "original_imports": ", ".join(sorted([loaded, *config])),
            "torch_import": "import torch\n" if greedy else "",
            "arguments": self._arguments(lambda column: column.value, "params.{name}", "load_config(params.config)", 8),
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
            "pytest": "" if self.source.file else "import pytest\n",
            "package": self.source.package,
            "source_module": self.source.module,
            "config_function": _CONFIG_FUNCTION if self.has_config else "",
        }

    def _arguments(self, write: Callable[[Column], str], option: str | None, config: str, indent: int) -> str:
        lines = []
        for name in self.arguments:
            if name in COLUMNS:
                lines.append(f"{name}={write(COLUMNS[name])}")
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
            lines.append(
                '    config: dict[str, Any] = Field(default_factory=dict, description="Fields of verl\'s AlgoConfig.")'
            )
        return "\n".join(lines) or f'    """`{self.source.name}` has no options."""'

    def _skip(self) -> str:
        if self.source.file is not None:
            return ""
        package = self.source.package
        return (
            f'pytestmark = pytest.mark.skipif(find_spec("{package}") is None, '
            f'reason="{package} is not installed: pip install {package}")\n\n'
        )


def bind_arguments(source: Source) -> Port:
    """Return a port in which every argument of the function receives a column, an option, or its default.

    Raises:
        PluginError: an argument cannot be filled.
    """
    arguments, options = [], []
    for name, parameter in inspect.signature(source.function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in UNUSED:
            continue
        default = DEFAULTS.get(name) if parameter.default is parameter.empty else parameter.default
        if name == CONFIG and source.package != "verl" and default is None and parameter.default is None:
            continue
        if isinstance(default, bool | int | float | str):
            options.append(Option(name=name, default=default))
        elif name not in COLUMNS and not (name == CONFIG and source.package == "verl"):
            raise PluginError(
                "argument-not-available",
                f"{source.name} has the argument `{name}`, which rllm cannot fill.",
                "In a file, write a function without it that calls this one, and port it: "
                "--from my_file.py:my_function.",
            )
        arguments.append(name)
    if "response_mask" not in arguments or "token_level_rewards" not in arguments:
        raise PluginError(
            "argument-not-available",
            f"{source.name} takes no `token_level_rewards` or no `response_mask`, so it is not an estimator.",
            "Name a function with verl's signature: token_level_rewards, response_mask, index.",
        )
    return Port(source=source, arguments=tuple(arguments), options=tuple(options), has_config=CONFIG in arguments)


def _literal(value: object) -> str:
    """Return a default as ruff formats it."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


_INDEX = "        index = np.array([group.group_id for group in groups for _ in group.trajectories], object)\n"
_GREEDY_TASKS = """\
        for trajectory in (each for group in groups for each in group.trajectories):
            trajectory.info[GREEDY_REWARD] = 0.5
"""
_CONFIG_FUNCTION = '''

def load_config(fields: dict[str, Any]) -> Any:
    """Return verl's algorithm config with these fields."""
    from verl.trainer.config import AlgoConfig

    return AlgoConfig(**fields)
'''
