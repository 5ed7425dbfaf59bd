"""Load a taskset and its environment from installed packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import verifiers.v1 as vf
from pydantic import BaseModel, ValidationError
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.configs.client import PRIME_INFERENCE_HOST
from verifiers.v1.utils import loaders
from verifiers.v1.utils.prime import load_prime_config

from rllm_core.errors import ConfigError
from rllm_envs.verifiers import chat
from rllm_envs.verifiers.options import VerifiersParams

PRIME_KEY = "PRIME_API_KEY"
CHAT = "rllm_chat"
"""Name of our harness. It replaces `NULL`, which installs packages, and the default of seats that name none, `BASH`."""
NULL, BASH = "null", "bash"

# verifiers finds a harness by the name of its module.
sys.modules[f"verifiers.v1.harnesses.{CHAT}"] = chat


def load_environment(params: VerifiersParams, max_turns: int) -> vf.Env:
    """Load the environment of the options.

    Seats without a harness get the harness `CHAT`, and seats without a runtime run on this machine, because the
    defaults of verifiers need an account.

    Args:
        params: the options.
        max_turns: maximum number of turns of seats that set none.

    Raises:
        ConfigError: a package is missing, or the settings are wrong.
    """
    with _explain(params):
        raw = {
            **params.config,
            # One server for all episodes.
            "interception": {**params.config.get("interception", {}), "type": "server"},
            "taskset": {**params.config.get("taskset", {}), "id": params.id},
        }
        config = loaders.resolve_env_config({**raw, **({"id": params.env} if params.env else {})})
        seats = {
            name: _complete(seat, params.config.get(name, {}), params.id, max_turns)
            for name, seat in agent_config_fields(config).items()
        }
        return loaders.load_environment(config.model_copy(update=seats))


def load_taskset(params: VerifiersParams, changes: Mapping[str, Any]) -> vf.Taskset:
    """Load the taskset of the options, with changes to its settings.

    Raises:
        ConfigError: a package is missing, or the settings are wrong.
    """
    with _explain(params):
        raw = {**params.config.get("taskset", {}), **changes, "id": params.id}
        return loaders.load_taskset(loaders.taskset_config_type(params.id).model_validate(raw))


def check_environment(params: VerifiersParams) -> None:
    """Load the environment, and check its seats and keys. No task is loaded.

    Raises:
        ConfigError: a package, a seat or an API key is missing, or the settings are wrong.
    """
    environment = load_environment(params, max_turns=1)
    if params.val_taskset is not None:
        load_taskset(params, params.val_taskset)
    seats = agent_config_fields(environment.config)
    if unknown := sorted(set(params.trained or ()) - set(seats)):
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.env_args.trained: {params.id!r} has no seat {', '.join(map(repr, unknown))}.",
            f"Its seats: {', '.join(seats)}.",
        )
    for missing in _missing_keys(environment.config):
        raise ConfigError(
            "missing-api-key",
            f"Environment {params.id!r} needs the environment variable {missing}, which is not set.",
            f"Set it with `export {missing}=KEY`, or change the endpoint in rllm.env.env_args.config.",
        )


def _complete(seat: vf.AgentConfig, given: Mapping[str, Any], taskset: str, max_turns: int) -> vf.AgentConfig:
    """Return a seat with a harness, a runtime and a maximum number of turns. `given` are the user's settings of it."""
    update: dict[str, Any] = {}
    harness = seat.harness
    if harness is None and loaders.default_harness_id(taskset) == BASH:
        update["harness"] = chat.ChatConfig(id=CHAT)
    elif harness is not None and harness.id == NULL:
        update["harness"] = chat.ChatConfig(**{**harness.model_dump(), "id": CHAT})
    if "runtime" not in given and seat.runtime == vf.PrimeConfig():
        update["runtime"] = vf.SubprocessConfig()
    if seat.max_turns is None:
        update["max_turns"] = max_turns
    return seat.model_copy(update=update)


def _missing_keys(value: Any) -> Iterator[str]:
    """Yield the environment variables with API keys that the settings name and that are not set."""
    if isinstance(value, vf.PrimeConfig):
        yield from _missing_key(PRIME_KEY)
    elif isinstance(value, vf.BaseClientConfig):
        host = urlsplit(value.base_url).hostname or ""
        # A local endpoint often needs no key, so the default name is needed only for the default host.
        if value.api_key_var != PRIME_KEY or host.endswith(PRIME_INFERENCE_HOST):
            yield from _missing_key(value.api_key_var)
    elif isinstance(value, BaseModel):
        for _, each in value:
            yield from _missing_keys(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _missing_keys(each)


def _missing_key(name: str) -> Iterator[str]:
    if not os.environ.get(name) and not (name == PRIME_KEY and load_prime_config().get("api_key")):
        yield name


@contextmanager
def _explain(params: VerifiersParams) -> Iterator[None]:
    """Turn errors of verifiers into errors that name the key to change."""
    try:
        yield
    except ModuleNotFoundError as error:
        cause = error.__cause__
        inner = cause.name if isinstance(cause, ModuleNotFoundError) else error.name
        named = (params.id, params.env or "")
        module = inner if inner is not None and not any(_is_module(inner, each) for each in named) else None
        raise ConfigError(
            "missing-package",
            f"Environment 'verifiers:{params.id}' needs the module {module!r}, which is not installed."
            if module
            else f"rllm.env.env_args: no module of a taskset or environment is installed for {params.id!r}: {error}.",
            f"Install the package that contains the module {module!r} with pip."
            if module
            else "Install its package with pip, or put its directory on Python's path: PYTHONPATH=. rllm train …",
        ) from error
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)
        )
        raise _rejected(params, problems) from error
    except ConfigError:
        raise
    except Exception as error:
        raise _rejected(params, f"{type(error).__name__}: {error}") from error


def _is_module(name: str, identifier: str) -> bool:
    return name.rpartition(".")[2] == identifier.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()


def _rejected(params: VerifiersParams, problems: str) -> ConfigError:
    return ConfigError(
        "environment-options-rejected",
        f"Environment 'verifiers:{params.id}' rejects its settings: {problems}.",
        "Change the named setting in rllm.env.env_args.config, or remove it.",
    )
