"""Choice of a plugin: from the value in the config (``opo``, ``dist/opo``, ``{name: opo, …}``) to a plugin with
validated options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from rllm_core.contracts.chosen import FAMILY, PluginChoice, Registered
from rllm_core.errors import ConfigError, PluginError, did_you_mean
from rllm_core.notices import warn_once
from rllm_core.plugins.registry import Registry


def choose(
    registry: Registry,
    kind: str,
    choice: str | Mapping[str, Any],
    where: str,
    shared: Mapping[str, object] | None = None,
    *,
    options_at: str | None = None,
) -> PluginChoice[Any]:
    """Look up `choice` and validate its options.

    Args:
        where: the full config path of the choice, such as ``rllm.algorithm.adv_estimator``.
        shared: values of config keys. An option that the choice does not set takes the value of the same name.
            Without such a value, the plugin's own default applies.
        options_at: the config path of the options, if they are not in the same mapping as the name.

    Raises:
        ConfigError: the plugin does not exist, or an option is invalid.
    """
    options_at = options_at or where
    name, options = _split(choice, kind, where)
    try:
        registered = registry.get(kind, name)
    except PluginError as error:
        raise ConfigError(error.code, f"{where}: {error.message}", error.hint) from error
    plugin = registered.plugin
    options |= _family(registered, name, options, where)
    if plugin.deprecated:
        warn_once(f"{where}: {kind} {registered.qualified_name} is deprecated: {plugin.deprecated}")
    _refuse_unknown(plugin.params, options, f"{kind} {plugin.name!r}", options_at)
    inherited = {key: value for key, value in (shared or {}).items() if key in plugin.params.model_fields}
    try:
        # Validated as JSON and strictly, like the config itself: the string "8" is no number, and 1 is not true.
        params = plugin.params.model_validate_json(json.dumps(inherited | options), strict=True)
    except ValidationError as error:
        taken_over = set(inherited) - set(options)
        explained = _explain(
            error, plugin.params, f"{kind} {plugin.name!r}", options_at, taken_over, options_at != where
        )
        missing = [detail["loc"] for detail in error.errors(include_url=False) if detail["type"] == "missing"]
        if (plugin.family_option,) in missing:
            wanted = f"{name}{FAMILY}{str(plugin.family_option).upper()}"
            raise ConfigError(explained.code, explained.message, f"Write {wanted} instead of {name}.") from error
        raise explained from error
    return PluginChoice(registered=registered, params=params, own=frozenset(options))


def _split(choice: object, kind: str, where: str) -> tuple[str, dict[str, Any]]:
    if isinstance(choice, str) and choice:
        return choice, {}
    if isinstance(choice, Mapping):
        options = {str(key): value for key, value in choice.items()}
        name = options.pop("name", None)
        if isinstance(name, str) and name:
            return name, options
        raise ConfigError(
            "bad-choice", f"{where}: {dict(choice)!r} has no name of a {kind}.", "Add `name: NAME` to it."
        )
    raise ConfigError(
        "bad-choice",
        f"{where}: {choice!r} is no {kind}.",
        "Expected NAME, DISTRIBUTION/NAME or {name: NAME, option: value}.",
    )


def _family(registered: Registered[Any], name: str, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the option that the suffix of the name sets."""
    _, colon, family = name.partition(FAMILY)
    if not colon:
        return {}
    option = registered.plugin.family_option
    if option is None or not family:
        own = f"{registered.kind} {registered.name!r}"
        what = "an empty family" if option else f"a family, and {own} has none"
        raise ConfigError("bad-choice", f"{where}: {name!r} names {what}.", f"Write {registered.name}.")
    if option in options:
        raise ConfigError(
            "conflicting-keys",
            f"{where}: {name!r} and its option {option!r} both choose a family.",
            f"Remove the option {option!r}.",
        )
    return {option: family}


def _refuse_unknown(model: type[BaseModel], options: Mapping[str, Any], owner: str, where: str) -> None:
    """Reject unknown options. They are checked here, so that no plugin's model can ignore an option silently."""
    if model.model_config.get("extra") == "allow":
        return
    known = _option_names(model)
    for option, value in options.items():
        if option not in known:
            raise ConfigError(
                "unknown-option", f"{where}.{option} is {value!r}: {owner} has no such option.", _advice(option, known)
            )


def _explain(
    error: ValidationError, model: type[BaseModel], owner: str, where: str, inherited: set[str], apart: bool
) -> ConfigError:
    """Return one error that lists all problems of the options."""
    problems, hints, details = [], [], error.errors(include_url=False)
    for detail in details:
        path = [str(part) for part in detail["loc"]]
        option = ".".join(path)
        message = detail["msg"][:1].lower() + detail["msg"][1:]
        if detail["type"] == "extra_forbidden":
            problems.append(f"{where}.{option} is {detail['input']!r}: {owner} has no such option")
            hints.append(_advice(path[-1], _option_names(_model_at(model, path[:-1]))))
        elif detail["type"] == "missing":
            problems.append(f"{where}.{option} is not set, and {owner} needs it")
            hints.append(f"Set {where}.{option}=VALUE." if apart else "Write {name: NAME, " + option + ": VALUE}.")
        elif not option:
            problems.append(f"{where}: options of {owner} do not fit together: {message}")
        elif path[0] in inherited:
            shared = f"the shared config key {option!r} is {detail['input']!r}"
            problems.append(f"{where}: {shared}, which {owner} takes over: {message}")
        else:
            problems.append(f"{where}.{option} is {detail['input']!r}: {message} (option of {owner})")
    unknown = all(detail["type"] == "extra_forbidden" for detail in details)
    advice = " ".join(dict.fromkeys(filter(None, hints)))
    return ConfigError("unknown-option" if unknown else "wrong-value", f"{'; '.join(problems)}.", advice)


def _advice(option: str, known: list[str]) -> str:
    return did_you_mean(option, known) or (f"Its options are {', '.join(known)}." if known else "It has no options.")


def _option_names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    """Return the nested model at `path`. If part of the path is not a model, return the last model found."""
    for part in path:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        for candidate in (annotation, *get_args(annotation)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return model
