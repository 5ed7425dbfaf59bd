"""reasoning-gym's generators, as the worker asks them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import reasoning_gym  # noqa: F401  (registers the generators)
from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS, create_dataset
from reasoning_gym.utils import SYSTEM_PROMPTS

from rllm_core.errors import ConfigError, did_you_mean
from rllm_envs.reasoning_gym.generator_config import read, resolved
from rllm_envs.reasoning_gym.unsafe_answers import hold_back_evaluation, may_be_evaluated

ENTRIES_KEPT = 256
"""A group of rollouts asks for its entry again and again."""
DATASETS_KEPT = 16

hold_back_evaluation()


def answered(asked: Mapping[str, Any]) -> Any:
    """The answer to a line of the worker.

    Raises:
        ConfigError: the options are wrong; the message and hint are for the user.
        Exception: whatever the generator raises.
    """
    if asked["ask"] == "config":
        return _checked(asked)
    if asked["ask"] == "system_prompt":
        return _system_prompt(asked["name"])
    source = asked["source"]
    made = entry(source)
    if asked["ask"] != "score":
        return made[asked["ask"]]
    # An entry of `composite` comes from a different generator.
    generator = made["metadata"].get("source_dataset", source["generator"])
    if not may_be_evaluated(generator, asked["answer"]):
        return 0.0
    return float(_dataset(_key(source)).score_answer(asked["answer"], made))


def entry(source: Mapping[str, Any]) -> Any:
    """The entry of a task's data, as the generator made it."""
    return _entry(_key(source), source["index"])


def _checked(asked: Mapping[str, Any]) -> dict[str, Any]:
    name = asked["generator"]
    if name not in DATASETS:
        raise ConfigError(
            "unknown-choice",
            f"rllm.env.env_args.generator: reasoning-gym has no generator {name!r}.",
            did_you_mean(name, DATASETS) or f"Its generators: {', '.join(sorted(DATASETS))}.",
        )
    config = resolved(name, asked["config"], asked["level"], asked["curriculum"])
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


_Key = tuple[str, str, int, int]
"""Generator, options as JSON, seed and size: what makes a dataset."""


def _key(source: Mapping[str, Any]) -> _Key:
    return source["generator"], json.dumps(source["config"]), source["seed"], source["size"]


@lru_cache(ENTRIES_KEPT)
def _entry(key: _Key, index: int) -> Any:
    dataset = _dataset(key)
    _seed_globals(key, index)
    return dataset[index]


@lru_cache(DATASETS_KEPT)
def _dataset(key: _Key) -> ProceduralDataset:
    name, options, seed, size = key
    config = read(name, json.loads(options))
    _seed_globals(key, 0)
    return create_dataset(name, **config, seed=seed, size=size)


def _seed_globals(key: _Key, index: int) -> None:
    """Some generators draw from the global generators: an entry must not depend on what was made before."""
    random.seed(key[2] + index)
    np.random.seed((key[2] + index) % 2**32)
