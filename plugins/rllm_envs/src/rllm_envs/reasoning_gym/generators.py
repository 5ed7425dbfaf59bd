"""The options, entries and scores of reasoning-gym's generators, for the worker.

Nine of its scorers would run the model's answer as Python: four call `eval`, and five call sympy's `parse_expr`, which
calls `eval` with all built-in functions. This module prevents it, because a model could otherwise run commands.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import lru_cache
from typing import Any, get_type_hints

import numpy as np
import reasoning_gym  # noqa: F401  (registers the generators)
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json, to_jsonable_python
from reasoning_gym.coaching.attributes import RangeAttributeDefinition
from reasoning_gym.coaching.base_curriculum import BaseCurriculum
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import CURRICULA, DATASETS, create_dataset
from reasoning_gym.utils import SYSTEM_PROMPTS

from rllm_core.errors import ConfigError, did_you_mean

EVALUATE = ("algorithmic.binary_matrix", "algorithmic.spiral_matrix", "algorithmic.string_insertion", "games.n_queens")
"""Modules whose scorer calls `eval` and expects a list."""
PARSE = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Generators whose scorer calls `parse_expr`."""
MATHEMATICS = re.compile(r"(?:[0-9+\-*/^(),=\s]|\.(?![A-Za-z_])|[A-Za-z]\w*)*", re.ASCII)
WORDS = re.compile("[A-Za-z]|sqrt|cbrt|exp|log|ln|pi|Abs|a?(?:sin|cos|tan|cot|sec|csc)h?|erfi?|Ei|Si|Ci|Rational")
"""Variables and functions of a formula."""


def disable_eval() -> None:
    """Let the scorers that call `eval` read literals only."""
    for name in EVALUATE:
        vars(sys.modules[f"reasoning_gym.{name}"])["eval"] = ast.literal_eval


def is_safe_answer(generator: str, answer: str) -> bool:
    """True if an answer is a formula, or if the generator's scorer does not evaluate formulas."""
    if generator not in PARSE:
        return True
    words = set(re.findall(r"[A-Za-z_]\w*", answer))
    return bool(MATHEMATICS.fullmatch(answer)) and all(map(WORDS.fullmatch, words))


ENTRIES_KEPT = 256
"""A group of rollouts asks for its entry again and again."""
DATASETS_KEPT = 16

disable_eval()


def answer_question(asked: Mapping[str, Any]) -> Any:
    """The answer to a line of the worker.

    Raises:
        ConfigError: the options are wrong; the message and hint are for the user.
        Exception: whatever the generator raises.
    """
    if asked["ask"] == "config":
        return check_config(asked)
    if asked["ask"] == "system_prompt":
        return _system_prompt(asked["name"])
    source = asked["source"]
    made = make_entry(source)
    if asked["ask"] != "score":
        return made[asked["ask"]]
    # An entry of `composite` comes from a different generator.
    generator = made["metadata"].get("source_dataset", source["generator"])
    if not is_safe_answer(generator, asked["answer"]):
        return 0.0
    return float(_dataset(_dataset_key(source)).score_answer(asked["answer"], made))


def make_entry(source: Mapping[str, Any]) -> Any:
    """Return the entry of a task's data, as the generator made it."""
    return _make_entry(_dataset_key(source), source["index"])


def check_config(asked: Mapping[str, Any]) -> dict[str, Any]:
    name = asked["generator"]
    if name not in DATASETS:
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.env_args.generator: reasoning-gym has no generator {name!r}.",
            did_you_mean(name, DATASETS) or f"Its generators: {', '.join(sorted(DATASETS))}.",
        )
    config = resolve_options(name, asked["config"], asked["level"], asked["curriculum"])
    try:
        _dataset((name, json.dumps(config), asked["seed"], asked["size"]))
    except ImportError as error:
        raise ConfigError(
            "missing-package",
            f"Generator {name!r} needs the package {error.name!r}, which is not installed.",
            f"Run: pip install {error.name}",
        ) from error
    except OSError as error:
        raise ConfigError(
            "generator-failed",
            f"Generator {name!r} cannot be loaded on this machine: {error}.",
            "Fix the cause, or choose a different generator with rllm.env.env_args.generator.",
        ) from error
    except Exception as error:
        reason = f"{error}" or type(error).__name__
        raise ConfigError(
            "environment-options-rejected",
            f"Generator {name!r} rejects its options {config!r}: {reason}.",
            "Change the named value in rllm.env.env_args.config, or remove that key.",
        ) from error
    return config


def _system_prompt(name: str) -> str:
    if name not in SYSTEM_PROMPTS:
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.env_args.system_prompt: reasoning-gym has no prompt {name!r}.",
            did_you_mean(name, SYSTEM_PROMPTS) or f"Write one of {', '.join(SYSTEM_PROMPTS)}, or the text itself.",
        )
    return str(SYSTEM_PROMPTS[name])


DatasetKey = tuple[str, str, int, int]
"""Generator, options as JSON, seed and size: what makes a dataset."""


def _dataset_key(source: Mapping[str, Any]) -> DatasetKey:
    return source["generator"], json.dumps(source["config"]), source["seed"], source["size"]


@lru_cache(ENTRIES_KEPT)
def _make_entry(key: DatasetKey, index: int) -> Any:
    dataset = _dataset(key)
    _seed_globals(key, index)
    return dataset[index]


@lru_cache(DATASETS_KEPT)
def _dataset(key: DatasetKey) -> ProceduralDataset:
    name, options, seed, size = key
    config = read_options(name, json.loads(options))
    _seed_globals(key, 0)
    return create_dataset(name, **config, seed=seed, size=size)


def _seed_globals(key: DatasetKey, index: int) -> None:
    """Some generators draw from the global generators: an entry must not depend on what was made before."""
    random.seed(key[2] + index)
    np.random.seed((key[2] + index) % 2**32)


OWN = {"seed": "rllm.env.env_args.seed", "size": "rllm.env.env_args.train_size and val_size"}
"""Fields of a generator's options that are not the user's, and what to set instead."""
CONFIG_KEY = "rllm.env.env_args.config"
CURRICULUM_KEY = "rllm.env.env_args.curriculum"
LEVEL_KEY = "rllm.env.env_args.level"


def resolve_options(
    name: str, config: Mapping[str, Any], level: int | None, levels: Mapping[str, int]
) -> dict[str, Any]:
    """The options of a generator as JSON: the user's, and those that levels of its curriculum set.

    Raises:
        ConfigError: a name or a value is wrong, or an option is set twice.
    """
    read_options(name, config)
    if level is None and not levels:
        return dict(config)
    from_levels = _read_levels(name, level, levels)
    if twice := sorted(set(config) & set(from_levels)):
        raise ConfigError(
            "conflicting-keys",
            f"{CONFIG_KEY}.{twice[0]} and the levels of the curriculum both set option {twice[0]!r} of {name!r}.",
            f"Remove {CONFIG_KEY}.{twice[0]}.",
        )
    options: dict[str, Any] = to_jsonable_python(from_levels)
    return dict(config) | options


def read_options(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the generator takes them, from JSON.

    Raises:
        ConfigError: it has no option of a name, or a value has another type.
    """
    of = DATASETS[name][1]
    known = {field.name: field for field in fields(of) if field.init}
    types = get_type_hints(of)
    for option in config:
        if option in OWN:
            raise ConfigError(
                "conflicting-keys", f"{CONFIG_KEY}.{option}: another key sets this.", f"Set {OWN[option]}."
            )
        if option not in known:
            own = ", ".join(sorted(known.keys() - OWN.keys())) or "none"
            raise ConfigError(
                "unknown-option",
                f"{CONFIG_KEY}.{option}: generator {name!r} has no such option.",
                did_you_mean(option, known.keys() - OWN.keys()) or f"Its options: {own}.",
            )
    return {option: _value(known[option], types[option], value) for option, value in config.items()}


def _value(field: Field[Any], annotated: Any, value: Any) -> Any:
    try:
        return TypeAdapter(annotated).validate_json(to_json(value), strict=True)
    except ValidationError as error:
        # Some annotations are wrong: `symbols: tuple = ("x")`, `variables: tuple[str] = ("x", "y", "z")`.
        default = _default(field)
        if (
            isinstance(default, tuple)
            and isinstance(value, list)
            and {type(each) for each in value} <= {type(each) for each in default}
        ):
            return tuple(value)
        if default is not None and type(value) is type(default):
            return value
        reason = error.errors(include_url=False)[0]["msg"]
        raise ConfigError(
            "bad-value",
            f"{CONFIG_KEY}.{field.name} is {value!r}: {reason[:1].lower()}{reason[1:]}.",
            f"Its default is {default!r}.",
        ) from error


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None


def _read_levels(name: str, level: int | None, levels: Mapping[str, int]) -> dict[str, Any]:
    if name not in CURRICULA:
        key = LEVEL_KEY if level is not None else CURRICULUM_KEY
        raise ConfigError(
            "unknown-option", f"{key} is set, and generator {name!r} has no curriculum.", f"Set {CONFIG_KEY} instead."
        )
    curriculum: BaseCurriculum = CURRICULA[name]()
    attributes = curriculum.attributes
    if level is not None:
        highest = max(len(each.levels) for each in attributes.values()) - 1
        if level > highest:
            raise ConfigError(
                "bad-value",
                f"{LEVEL_KEY} is {level}, and the curriculum of {name!r} ends with level {highest}.",
                f"Set {LEVEL_KEY} to {highest} or less.",
            )
        curriculum.set_global_level(level)
    for attribute, own in levels.items():
        if attribute not in attributes:
            raise ConfigError(
                "unknown-option",
                f"{CURRICULUM_KEY}.{attribute}: the curriculum of {name!r} has no such attribute.",
                did_you_mean(attribute, attributes) or f"Its attributes: {', '.join(attributes)}.",
            )
        if not 0 <= own < len(attributes[attribute].levels):
            raise ConfigError(
                "bad-value",
                f"{CURRICULUM_KEY}.{attribute} is {own}.",
                f"Levels of this attribute go from 0 to {len(attributes[attribute].levels) - 1}.",
            )
        curriculum.set_attr_level(attribute, own)
    generated = curriculum.generate_configuration()
    set_by = attributes if level is not None else levels
    return {option: getattr(generated, option) for each in set_by for option in _list_options(attributes[each])}


def _list_options(attribute: Any) -> tuple[str, ...]:
    if isinstance(attribute, RangeAttributeDefinition):
        return attribute.lower_field_name, attribute.upper_field_name
    return (attribute.field_name,)
