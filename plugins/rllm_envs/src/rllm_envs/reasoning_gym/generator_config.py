"""Options of a generator: names, types, and what the levels of its curriculum set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json, to_jsonable_python
from reasoning_gym.coaching.attributes import RangeAttributeDefinition
from reasoning_gym.coaching.base_curriculum import BaseCurriculum
from reasoning_gym.factory import CURRICULA, DATASETS

from rllm_core.errors import ConfigError, did_you_mean

OWN = {"seed": "rllm.env.env_args.seed", "size": "rllm.env.env_args.train_size and val_size"}
"""Fields of a generator's options that are not the user's, and what to set instead."""
CONFIG_KEY = "rllm.env.env_args.config"
CURRICULUM_KEY = "rllm.env.env_args.curriculum"
LEVEL_KEY = "rllm.env.env_args.level"


def resolved(name: str, config: Mapping[str, Any], level: int | None, levels: Mapping[str, int]) -> dict[str, Any]:
    """The options of a generator as JSON: the user's, and those that levels of its curriculum set.

    Raises:
        ConfigError: a name or a value is wrong, or an option is set twice.
    """
    read(name, config)
    if level is None and not levels:
        return dict(config)
    from_levels = _of_levels(name, level, levels)
    if twice := sorted(set(config) & set(from_levels)):
        raise ConfigError(
            "conflicting-keys",
            f"{CONFIG_KEY}.{twice[0]} and the levels of the curriculum both set option {twice[0]!r} of {name!r}.",
            f"Remove {CONFIG_KEY}.{twice[0]}.",
        )
    options: dict[str, Any] = to_jsonable_python(from_levels)
    return dict(config) | options


def read(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
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


def _of_levels(name: str, level: int | None, levels: Mapping[str, int]) -> dict[str, Any]:
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
    return {option: getattr(generated, option) for each in set_by for option in _options_of(attributes[each])}


def _options_of(attribute: Any) -> tuple[str, ...]:
    if isinstance(attribute, RangeAttributeDefinition):
        return attribute.lower_field_name, attribute.upper_field_name
    return (attribute.field_name,)
