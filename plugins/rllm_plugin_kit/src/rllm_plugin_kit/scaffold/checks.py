"""Code of a package that calls an existing function: the checks of its library and of the option `config`."""

from __future__ import annotations

from rllm_plugin_kit.scaffold.sources import Source, install_command

CONFIG_CLASSES = {"estimator": "AlgoConfig", "loss": "ActorConfig"}
"""verl's class for the argument `config`, by kind."""
_CONFIG_CALLS = {
    "estimator": ("verl.trainer.config", "AlgoConfig(**fields)"),
    "loss": (
        "verl.workers.config",
        'ActorConfig(**{"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, **fields})',
    ),
}
"""Module of the class, and the call that makes a config, by kind."""
_LOAD_CONFIG = '''

def load_config(fields: dict[str, Any]) -> Any:
    """Return verl's config with these fields.

    Raises:
        ConfigError: the config has no such field.
    """
    from {module} import {config_class}

    known = {config_class}.__dataclass_fields__
    for name in fields.keys() - known.keys():
        hint = did_you_mean(name, known) or "Remove it, or correct its name."
        raise ConfigError("unknown-option", f"verl's {config_class} has no field {{name!r}}.", hint)
    return {call}
'''
_CHECK = '''

def check(params: Any) -> None:
    """{summary}"""
{lines}'''
_CHECK_PACKAGE = """\
    if find_spec("{package}") is None:
        raise PluginError("missing-package", "{package} is not installed.", "Install {package}: {install}.")
"""
_CHECK_CONFIG = """\
    if params.config:
        load_from(f"{{__package__}}.{module}", "{function}")()(params.config)
"""


def write_load_config(kind: str) -> str:
    """Return the function that creates verl's config from the option `config`."""
    module, call = _CONFIG_CALLS[kind]
    return _LOAD_CONFIG.format(module=module, call=call, config_class=CONFIG_CLASSES[kind])


def write_check(source: Source, *, has_config: bool) -> str:
    """Return the function that checks the library and the option `config` before a run. Empty without both."""
    module, function = ("trainer", "check_fields") if source.form == "trainer" else ("original", "load_config")
    package, install = source.package, install_command(source.package)
    lines = "" if source.file else _CHECK_PACKAGE.format(package=package, install=install)
    lines += _CHECK_CONFIG.format(module=module, function=function) if has_config else ""
    summary = "Check the library and the names in the option `config` before a run starts."
    return _CHECK.format(summary=summary, lines=lines) if lines else ""
