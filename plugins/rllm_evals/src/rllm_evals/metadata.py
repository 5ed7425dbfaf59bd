"""`eval.json` of a saved evaluation: what was played with which model, and by which versions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rllm_core import __version__
from rllm_core.config import leaves
from rllm_core.errors import ConfigError, RllmError
from rllm_core.files import write_atomically
from rllm_core.rollout.scoring import WeightedReward
from rllm_core.training import RewardSources
from rllm_evals.playing import Job

FILE_NAME = "eval.json"
SCHEMA_VERSION = 1
MAY_CHANGE = frozenset(
    {
        "rllm.rollout.n_val",
        "rllm.workflow.n_parallel_tasks",
        "rllm.workflow.retry_limit",
        "rllm.workflow.raise_on_error",
    }
)
"""Keys that change how many attempts there are, or how they are run, and none of them."""
SHOWN = 3
"""Differences that an error names."""


@dataclass(frozen=True)
class Environment:
    """One environment of a saved evaluation."""

    file: str
    """Its attempts, relative to the folder."""
    tasks: int
    attempts_per_task: int
    pays: bool
    """Whether the environment pays something itself, beside ``rllm.reward``."""
    reward_sources: Mapping[str, str]
    """What decides its rewards beside their options, such as the file of a function; see `RewardPlugin.sources`."""
    config: Mapping[str, Any]
    """The whole configuration that it was played with."""


@dataclass(frozen=True)
class Metadata:
    """Content of `eval.json`."""

    model: str
    """As it was named."""
    model_folder: str | None
    """The folder that this was; None where it was none."""
    environments: Mapping[str, Environment]
    plugins: Sequence[Mapping[str, str]] = ()
    """Kind, name, distribution and version of every plugin that played."""
    rllm_core: str = __version__
    schema_version: int = field(default=SCHEMA_VERSION)


def metadata_of(jobs: Sequence[Job]) -> Metadata:
    """What will be played."""
    first = jobs[0].play
    plugins = {
        (entry.kind, entry.qualified_name): {
            "kind": entry.kind,
            "name": entry.name,
            "distribution": entry.distribution,
            "version": entry.version,
        }
        for job in jobs
        for entry in job.play.plan.registered()
    }
    folder = Path(first.model).expanduser()
    return Metadata(
        model=first.model,
        model_folder=str(folder.resolve()) if folder.is_dir() else None,
        environments={
            job.name: Environment(
                file=f"episodes/{_file_name(job.name)}.jsonl.gz",
                tasks=len(job.tasks),
                attempts_per_task=job.attempts_per_task,
                pays=_pays(job),
                reward_sources=sources_of(job.play.plan.rewards),
                config=json.loads(json.dumps(job.play.plan.composed.written, default=str)),
            )
            for job in jobs
        },
        plugins=list(plugins.values()),
    )


def sources_of(rewards: Sequence[WeightedReward]) -> dict[str, str]:
    """What decides rewards beside their options, name to text."""
    return RewardSources(rewards, "error").state_dict()


def _pays(job: Job) -> bool:
    """An environment that needs rewards pays nothing itself; see `EnvironmentPlugin.needs_keys`."""
    environment = job.play.plan.environment
    return environment is None or "rllm.reward" not in environment.plugin.needs_keys


def read_metadata(folder: Path) -> Metadata | None:
    """None where the folder holds no evaluation.

    Raises:
        RllmError: it cannot be read, or another version wrote it.
    """
    file = folder / FILE_NAME
    if not file.is_file():
        return None
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        version = data["schema_version"]
        if version == SCHEMA_VERSION:
            environments = {name: Environment(**each) for name, each in data.pop("environments").items()}
            return Metadata(**data, environments=environments)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RllmError(f"{file} cannot be read: {error}.", "Restore it, or choose another folder.") from error
    raise RllmError(
        f"{file} is of schema version {version}; this rllm-evals reads {SCHEMA_VERSION}.",
        "Use the rllm-evals that wrote it.",
    )


def write_metadata(folder: Path, metadata: Metadata) -> None:
    write_atomically(folder / FILE_NAME, json.dumps(asdict(metadata), indent=1) + "\n")


def merged(before: Metadata, now: Metadata, folder: Path) -> Metadata:
    """What the folder holds once `now` has been played too.

    Raises:
        ConfigError: it was played by another model, or an environment with another configuration.
    """
    differences = list(_differences(before, now))
    if differences:
        more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        raise ConfigError(
            f"{folder} holds another evaluation: {'; '.join(differences[:SHOWN])}{more}.",
            "Give the same command again to go on with it, or choose another folder with --save.",
        )
    attempts = {name: each.attempts_per_task for name, each in before.environments.items()}
    environments = {
        name: Environment(**asdict(each) | {"attempts_per_task": max(each.attempts_per_task, attempts.get(name, 0))})
        for name, each in now.environments.items()
    }
    plugins = {
        (entry["kind"], entry["distribution"], entry["name"]): entry for entry in (*before.plugins, *now.plugins)
    }
    return Metadata(
        model=now.model,
        model_folder=now.model_folder,
        environments={**before.environments, **environments},
        plugins=list(plugins.values()),
    )


def _differences(before: Metadata, now: Metadata) -> Iterator[str]:
    if (before.model_folder or before.model) != (now.model_folder or now.model):
        yield f"its model is {before.model_folder or before.model}, not {now.model_folder or now.model}"
    for name in before.environments.keys() & now.environments.keys():
        was, is_now = before.environments[name], now.environments[name]
        if was.tasks != is_now.tasks:
            yield f"{name} had {was.tasks} tasks and has {is_now.tasks}"
        for source in sorted(was.reward_sources.keys() & is_now.reward_sources.keys()):
            if was.reward_sources[source] != is_now.reward_sources[source]:
                yield f"the source of reward {source} of {name} has changed"
        one, other = (dict(_by_key(each.config)) for each in (was, is_now))
        for key in sorted(one.keys() | other.keys()):
            if one.get(key) != other.get(key) and key not in MAY_CHANGE and not _names_the_model(key, before, now):
                yield f"{key} of {name} was {one.get(key)!r:.80} and is {other.get(key)!r:.80}"


def _by_key(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((".".join(path), value) for path, value in leaves(dict(config)))


def _names_the_model(key: str, before: Metadata, now: Metadata) -> bool:
    """Whether a key holds the model's name: a folder is the same by whatever path."""
    names = {before.model, now.model}
    configs = [each.config for metadata in (before, now) for each in metadata.environments.values()]
    return all(dict(_by_key(config)).get(key) in names for config in configs)


def _file_name(environment: str) -> str:
    """A name for a file: letters, digits, and few others stay."""
    return "".join(letter if letter.isalnum() or letter in "-_." else f"%{ord(letter):02x}" for letter in environment)
