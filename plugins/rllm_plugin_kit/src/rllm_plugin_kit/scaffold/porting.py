"""The files of a package that calls an existing function: the data that each of its arguments receives."""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Literal

from rllm_core.errors import PluginError
from rllm_plugin_kit.scaffold.checks import CONFIG_CLASSES, write_check, write_load_config
from rllm_plugin_kit.scaffold.kinds import TEMPLATES, Template
from rllm_plugin_kit.scaffold.sources import Source, install_command, list_portable


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
        # OpenRLHF's names.
        "rewards": Column(value="batch.rewards", value_in_test="rewards"),
        "action_mask": Column(value="batch.mask", value_in_test="mask"),
    }
)
"""Arguments of verl's and OpenRLHF's estimators -> the data that they receive."""
GROUP_COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        "rewards": Column(
            value="torch.tensor(inputs.rewards[start:end])", value_in_test="torch.tensor(inputs.rewards)"
        ),
        "num_generations": Column(value="end - start", value_in_test="4"),
    }
)
"""Arguments of a function written for TRL, which is called with one group at a time -> the data that they receive."""
LOSS_COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        "old_log_prob": Column(value="row.old_logprobs[None]", value_in_test="old"),
        "log_prob": Column(value="row.logprobs[None]", value_in_test="new"),
        "advantages": Column(value="row.advantages[None]", value_in_test="advantages"),
        "response_mask": Column(value="mask", value_in_test="mask"),
        "loss_agg_mode": Column(value='"token-mean"', value_in_test='"seq-mean-token-mean"'),
        "rollout_is_weights": Column(value="weights", value_in_test="torch.ones_like(mask)"),
        # OpenRLHF's names. The value is a mean over the tokens of a row, so both means are the same.
        "old_log_probs": Column(value="row.old_logprobs[None]", value_in_test="old"),
        "log_probs": Column(value="row.logprobs[None]", value_in_test="new"),
        "action_mask": Column(value="mask", value_in_test="mask"),
        "token_level_loss": Column(value="True", value_in_test="False"),
    }
)
"""Arguments of verl's and OpenRLHF's losses -> the data that they receive. A loss is called with one row at a time."""
COLUMNS_OF = {"estimator": COLUMNS, "loss": LOSS_COLUMNS}
REQUIRED = {
    "estimator": (("token_level_rewards", "rewards"), ("response_mask", "action_mask", "num_generations")),
    "loss": (("log_prob", "log_probs"), ("advantages",), ("response_mask", "action_mask")),
}
"""Arguments without which a function is no plugin of the kind, each with its other names."""
DEFAULTS = {"gamma": 1.0, "lam": 1.0, "lambd": 1.0}
"""Arguments without a default in verl's and OpenRLHF's functions, and the defaults in their trainers."""
CONFIG = "config"
"""The argument for verl's algorithm config."""
UNUSED = frozenset({"rollout_is_weights", "rollout_log_probs", "dp_size", "batch_num_tokens", "global_batch_size"})
"""Arguments that keep their default: weights that rllm applies in the update, and sizes for its aggregation."""
CORRECTION = "is_correction_"
"""The start of OpenRLHF's arguments for rollout correction, which keep their default: rllm corrects in the update."""
AGGREGATION = frozenset({"loss_agg_mode", "token_level_loss"})
"""Arguments that let a test choose the mean over rows of the means of their tokens."""
OPTIONS = (bool, int, float, str)
"""Types of defaults. Values of their subclasses, such as enums, have no literal."""
Bound = Literal["none", "token", "row"]
"""The log-ratios that a ported loss bounds: none, each token's, or the sum of a row's."""
LINE = 120
"""Maximum length of a line."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """An argument that becomes an option of the plugin."""

    name: str
    default: bool | int | float | str | None
    type: str
    """The annotation of its field."""

    def declaration(self, function: str) -> str:
        """Return the lines of its field."""
        arguments = f'default={_literal(self.default)}, description="Argument of `{function}`."'
        field_of = f"    {self.name}: {self.type} = Field("
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
    settings: tuple[str, ...] = ()
    """Arguments of the constructor, if it is a class of torch."""
    is_grouped: bool = False
    """True for a function that is called with one group at a time, as TRL's code."""
    bound: Bound = "none"
    """Log-ratios that the package bounds, because the loss is not finite for large ones."""
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
        config = f"name: $chosen, {option.name}: {_yaml(option.default)}" if option else "name: $chosen"
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
        """The data that the function's arguments can receive."""
        return GROUP_COLUMNS if self.is_grouped else COLUMNS_OF[self.kind]

    @property
    def templates(self) -> tuple[str, ...]:
        """Directories of templates, the most general one first."""
        if self.source.form == "trainer":
            made_by_trl = () if self._trl_config is None else ("ported_trl_trainer",)
            return ("ported", "ported_loss", "ported_trainer", *made_by_trl)
        return ("ported", "ported_group" if self.is_grouped else f"ported_{self.kind}")

    @property
    def needs(self) -> list[str]:
        """Columns that must be filled before the plugin runs, sorted."""
        named = (self.columns[name].need for name in self.arguments if name in self.columns)
        return sorted(need for need in named if need is not None)

    def values(self) -> dict[str, str]:
        """Return the values of the placeholders that only templates of ports have."""
        loaded = "load_original" if self.source.file is None else self.source.symbol
        config = ["load_config"] if self.has_config and self.source.package == "verl" else []
        check = write_check(self.source, has_config=self.has_config)
        quoted = ", ".join(f'"{need}"' for need in self.needs)
        greedy = "greedy_rewards" in self.needs
        indent = 8 if self.kind == "estimator" and not self.is_grouped else 12
        return {
            "origin": self.source.origin,
            "original": self.source.full_name,
            "symbol": self.source.symbol,
            "call": self._call(loaded),
            "prepare": self._prepare(loaded, "params.{name}", lambda column: column.value, indent - 4),
            "prepare_test": self._prepare(loaded, None, lambda column: column.value_in_test, 4),
            "bound_import": "from rllm_core.updates.losses import MAX_LOG_RATIO\n" if self.bound != "none" else "",
            "bound": _BOUNDS[self.bound],
            "original_imports": ", ".join(sorted([loaded, *config])),
            "torch_import": "import torch\n" if greedy else "",
            "arguments": self._arguments(
                lambda column: column.value, "params.{name}", "load_config(params.config)", indent
            ),
            "test_arguments": self._arguments(
                lambda column: column.value_in_test, None, "load_config({})", 12 if self.kind == "estimator" else 8
            ),
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
            "install": install_command(self.source.package),
            "source_module": self.source.module,
            "config_function": write_load_config(self.kind) if config else "",
            "config_errors": "ConfigError, PluginError, did_you_mean" if config else "PluginError",
            "check": "        check=check,\n" if check else "",
            "check_function": check,
            "find_spec_in_check": "" if self.source.file else "from importlib.util import find_spec\n",
            "errors_in_check": "" if self.source.file else "from rllm_core.errors import PluginError\n",
            "loss_method": self.source.name,
            "config_module": self._trl_config.__module__ if self._trl_config else "",
            "config_class": self._trl_config.__name__ if self._trl_config else "",
            "theirs": _THEIRS if self.arguments and AGGREGATION & {*self.arguments, *self.settings} else _THEIRS_BY_ROW,
            "gradient": "" if self.is_exact else '    gradient = "surrogate"  # The function detaches a factor.\n',
            "has_ratio": "" if self.has_ratio else "        has_ratio=False,\n",
        }

    @property
    def _trl_config(self) -> type | None:
        """The class of TRL for the config of the trainer or of a class that it extends. None for other sources."""
        for each in self.source.owner.__mro__ if self.source.owner and self.source.form == "trainer" else ():
            found = getattr(sys.modules[each.__module__], each.__name__.replace("Trainer", "Config"), None)
            if isinstance(found, type) and found is not each and found.__module__.startswith("trl."):
                return found
        return None

    @property
    def _has_self(self) -> bool:
        """True if the call needs an argument `self`, which the method does not use."""
        return self.source.form == "method" and isinstance(self.source.function, partial)

    @property
    def _has_infinity(self) -> bool:
        """True if a default is infinite, which `Params` forbids."""
        return any(isinstance(option.default, float) and math.isinf(option.default) for option in self.options)

    def _call(self, loaded: str) -> str:
        """Return the expression of the function to call."""
        name = f"{loaded}()" if self.source.file is None else loaded
        if self.source.form == "module":
            return "original"
        return f"{name}.{self.source.name}" if self.source.form == "method" else name

    def _prepare(self, loaded: str, option: str | None, write: Callable[[Column], str], indent: int) -> str:
        """Return the statement that makes an object of a class of torch. Empty for all other forms."""
        if self.source.form != "module":
            return ""
        name, space = (f"{loaded}()" if self.source.file is None else loaded), " " * indent
        arguments = self._arguments(write, option, "", indent + 4, self.settings)
        return f"{space}original = {name}({f'{chr(10)}{arguments}{chr(10)}{space}' if arguments else ''})\n"

    def _arguments(
        self,
        write: Callable[[Column], str],
        option: str | None,
        config: str,
        indent: int,
        arguments: tuple[str, ...] | None = None,
    ) -> str:
        lines = ["None"] if self._has_self else []
        for name in self.arguments if arguments is None else arguments:
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
        names = "ConfigDict, Field" if self._has_infinity else "Field"
        lines += [f"from pydantic import {names}"] if self.options or self.has_config else []
        return "\n".join([*lines, "from rllm_core.contracts import Params\n"])

    def _option_fields(self) -> str:
        lines = [option.declaration(self.source.name) for option in self.options]
        if self._has_infinity:
            lines.insert(0, '    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="constants")\n')
        if self.has_config:
            owner = f"verl's {CONFIG_CLASSES[self.kind]}" if self.source.form != "trainer" else "the trainer's config"
            description = f"Fields of {owner}."
            lines.append(f'    config: dict[str, Any] = Field(default_factory=dict, description="{description}")')
        return "\n".join(lines) or f'    """`{self.source.name}` has no options."""'

    def _skip(self) -> str:
        if self.source.file is not None:
            return ""
        package = self.source.package
        condition = f'find_spec("{package}") is None, reason="{package} is not installed"'
        return f"pytestmark = pytest.mark.skipif({condition})\n\n"


def bind_arguments(source: Source, kind: str) -> Port:
    """Return a port in which every argument of the function receives data, an option, or its default.

    Raises:
        PluginError: an argument cannot be filled.
    """
    if source.form == "trainer":
        return _bind_trainer(source, kind)
    parameters: Mapping[str, inspect.Parameter] = inspect.signature(source.function).parameters
    is_grouped = kind == "estimator" and "num_generations" in parameters
    columns = GROUP_COLUMNS if is_grouped else COLUMNS_OF[kind]
    other = next(each for each in COLUMNS_OF if each != kind)
    if not _has_required(parameters, kind) and _has_required(parameters, other):
        raise PluginError(
            "argument-not-available",
            f"{source.full_name} has the arguments of a plugin of the kind {other}, not {kind}.",
            f"Add --kind {other}.",
        )
    arguments, options = _bind(source, parameters, columns)
    settings: list[str] = []
    if source.form == "module":
        assert source.owner is not None, "a class"
        constructor = inspect.signature(source.owner).parameters
        parameters = {**constructor, **parameters}
        names, more = _bind(source, constructor, columns)
        settings, options = [*names], options + more
    missing = [names for names in REQUIRED[kind] if not arguments & dict.fromkeys(names).keys()]
    if missing:
        raise PluginError(
            "argument-not-available",
            f"{source.full_name} has no argument `{missing[0][0]}`, so it cannot be a plugin of the kind {kind}.",
            f"Name a function with the arguments {', '.join(' or '.join(names) for names in REQUIRED[kind])}.",
        )
    return Port(
        kind=kind,
        source=source,
        arguments=tuple(arguments),
        options=tuple(options),
        settings=tuple(settings),
        is_grouped=is_grouped,
        has_config=CONFIG in arguments,
        notes=() if CONFIG in arguments or CONFIG not in parameters else (_unfilled_config(source),),
    )


def _unfilled_config(source: Source) -> str:
    return (
        f"{source.full_name} has the argument `config`, which stays None, so the function uses its own defaults. "
        "Use arguments with a default instead: they become options."
    )


def _has_required(names: Mapping[str, object], kind: str) -> bool:
    return all(names.keys() & set(required) for required in REQUIRED[kind])


def _bind(
    source: Source, parameters: Mapping[str, inspect.Parameter], columns: Mapping[str, Column]
) -> tuple[dict[str, None], list[Option]]:
    """Return the names of the arguments that receive something, in order, and the options among them."""
    arguments: dict[str, None] = {}
    options = []
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in UNUSED - columns.keys():
            continue
        default = DEFAULTS.get(name) if parameter.default is parameter.empty else parameter.default
        if name.startswith(CORRECTION) or (name == CONFIG and source.package != "verl" and default is None):
            continue
        if name not in columns and (annotation := _option_type(default, parameter.annotation)):
            options.append(Option(name=name, default=default, type=annotation))
        elif name not in columns and not (name == CONFIG and source.package == "verl"):
            raise PluginError(
                "argument-not-available",
                f"{source.full_name} has the argument `{name}`, which rllm cannot fill.",
                f"{list_portable(source.package)}In a file, write a function without it that calls this one, and port "
                "it: --from my_file.py:my_function.",
            )
        arguments[name] = None
    return arguments, options


def _option_type(default: object, annotation: object) -> str | None:
    """Return the annotation of an option with this default. None if the argument cannot be an option."""
    if type(default) in OPTIONS and default == default:  # No NaN, which equals nothing when options are read back.
        return type(default).__name__
    kinds = [each for each in OPTIONS if annotation in (each, each | None)]
    return f"{kinds[0].__name__} | None" if kinds and default is None else None


def _bind_trainer(source: Source, kind: str) -> Port:
    """Return a port of the loss of a trainer of TRL, whose settings are the fields of `GRPOConfig`."""
    if kind != "loss":
        raise PluginError(
            "argument-not-available",
            f"{source.symbol} computes advantages while it generates, so rllm cannot call it as an estimator.",
            "Port its loss with --kind loss. For the advantages, copy the lines into a function of `rewards` and "
            "`num_generations`, and port it: --from my_file.py:my_function.",
        )
    # The method is called with three arguments: the trainer, its model and a batch.
    for name, parameter in list(inspect.signature(source.function).parameters.items())[3:]:
        if parameter.default is parameter.empty:
            raise PluginError(
                "argument-not-available",
                f"{source.full_name} has the argument `{name}`, so it does not learn from rollouts.",
                f"{list_portable('trl')}To learn from data, use `rllm prefer` or `rllm sft`.",
            )
    return Port(kind=kind, source=source, arguments=(), options=(), has_config=True)


def _literal(value: object) -> str:
    """Return a default as ruff formats it."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    text = repr(value)
    if not isinstance(value, str) or text.startswith('"') or value.count('"') > value.count("'"):
        return text
    inner = text[1:-1].replace("\\'", "'").replace('"', '\\"')
    return f'"{inner}"'


def _yaml(value: object) -> str:
    """Return a default in YAML, with each `$` doubled for the template."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("inf", ".inf")
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) or value is None else repr(value)
    return text.replace("$", "$$")


_THEIRS = "theirs = compute_original(old, new, advantages, mask)"
_THEIRS_BY_ROW = """\
rows = zip(*(each.split(1) for each in (old, new, advantages, mask)), strict=True)
        theirs = torch.stack([compute_original(*row) for row in rows]).mean()"""
_BOUNDS: Mapping[Bound, str] = MappingProxyType(
    {
        "none": "",
        "token": """\
        log_ratios = (row.logprobs - row.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        row = replace(row, logprobs=row.old_logprobs + log_ratios)  # The original overflows above.
""",
        "row": """\
        log_ratios = row.logprobs - row.old_logprobs
        excess = log_ratios.detach().sum().abs() / MAX_LOG_RATIO
        # The original overflows above this limit. As after `clamp`, the gradient is 0 there.
        log_ratios = torch.where(excess > 1, log_ratios.detach() / excess, log_ratios)
        row = replace(row, logprobs=row.old_logprobs + log_ratios)
""",
    }
)
_INDEX = "        index = np.array([group.group_id for group in groups for _ in group.trajectories], object)\n"
_GREEDY_TASKS = """\
        for trajectory in (each for group in groups for each in group.trajectories):
            trajectory.info[GREEDY_REWARD] = 0.5
"""
