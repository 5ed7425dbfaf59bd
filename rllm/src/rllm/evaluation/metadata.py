"""`eval.json` of a saved evaluation: its environments, model, and package versions.

A model's weights are identified by the content of its files, not by their path.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rllm.config import leaves
from rllm.evaluation.plans import EvaluationPlan, Job
from rllm.training import RunSources
from rllm_core import __version__
from rllm_core.errors import ConfigError, RllmError
from rllm_core.files import sha256, write_atomically

FILE_NAME = "eval.json"
SCHEMA_VERSION = 3
MAY_CHANGE = frozenset(
    {
        "rllm.rollout.n_val",
        "rllm.workflow.n_parallel_tasks",
        "rllm.workflow.retry_limit",
        "rllm.workflow.raise_on_error",
    }
)
"""Keys that change only how many rollouts an evaluation has or how they run, and not their results."""
SHOWN = 3
"""Maximum number of differences in an error message."""


@dataclass(frozen=True)
class Environment:
    """One environment of a saved evaluation."""

    file: str
    """Its rollouts, relative to the directory."""
    tasks: int
    rollouts_per_task: int
    reward_sources: Mapping[str, str]
    """Inputs that decide the rewards in addition to options, such as a function's file. See `RewardPlugin.sources`."""
    workflow_sources: Mapping[str, str]
    """Inputs that decide the rollouts in addition to the workflow's options, such as an agent's file."""
    config: Mapping[str, Any]
    """The whole configuration that it was run with."""


@dataclass(frozen=True)
class Metadata:
    """Content of `eval.json`."""

    model: str
    """The model's name, as the user wrote it."""
    weights: Weights | None
    """Directory and digest of the model's weights. None if only the name is known."""
    environments: Mapping[str, Environment]
    plugins: Sequence[Mapping[str, str]] = ()
    """Kind, name, distribution and version of every plugin in use."""
    rllm_core: str = __version__
    schema_version: int = field(default=SCHEMA_VERSION)

    @property
    def shown_model(self) -> str:
        """The model for people: its name, or directory and weights."""
        return self.model if self.weights is None else str(self.weights)


def build_metadata(jobs: Sequence[Job]) -> Metadata:
    """Return the metadata of these jobs.

    Raises:
        RllmError: the model's files cannot be read.
    """
    first = jobs[0].evaluation
    plugins = {
        (entry.kind, entry.qualified_name): {
            "kind": entry.kind,
            "name": entry.name,
            "distribution": entry.distribution,
            "version": entry.version,
        }
        for job in jobs
        for entry in job.evaluation.plan.registered()
    }
    try:
        weights = find_weights(first.model)
    except (OSError, ValueError) as error:
        raise RllmError(
            "file-unreadable",
            f"The weights of {first.model} cannot be read: {error}.",
            f"Check them with `ls -l {first.model}`.",
        ) from error
    return Metadata(
        model=first.model,
        weights=weights,
        environments={
            job.name: Environment(
                file=f"episodes/{_file_name(job.name)}.jsonl.gz",
                tasks=len(job.tasks),
                rollouts_per_task=job.rollouts_per_task,
                reward_sources=RunSources([each.chosen for each in job.evaluation.plan.rewards], "error").state_dict(),
                workflow_sources=RunSources([job.evaluation.plan.workflow], "error").state_dict(),
                config=json.loads(json.dumps(job.evaluation.plan.composed.printable_tree, default=str)),
            )
            for job in jobs
        },
        plugins=list(plugins.values()),
    )


def read_metadata(directory: Path) -> Metadata | None:
    """Return the metadata of the evaluation in a directory. None if it contains no evaluation.

    Raises:
        RllmError: the file cannot be read, or a newer version of rllm wrote it.
    """
    file = directory / FILE_NAME
    if not file.is_file():
        return None
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        version = data["schema_version"]
        if version == SCHEMA_VERSION:
            environments = {name: Environment(**each) for name, each in data.pop("environments").items()}
            found = data.pop("weights")
            weights = None if found is None else Weights(**found)
            return Metadata(**data, weights=weights, environments=environments)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RllmError(
            "file-unreadable",
            f"{file} cannot be read: {error}.",
            f"Copy {file.name} back from a backup, or evaluate again with --save into a new directory.",
        ) from error
    raise RllmError(
        "schema-too-new",
        f"{file} has schema version {version}, and this version of rllm reads {SCHEMA_VERSION}.",
        "Use the version of rllm that wrote it.",
    )


def write_metadata(directory: Path, metadata: Metadata) -> None:
    write_atomically(directory / FILE_NAME, json.dumps(asdict(metadata), indent=1) + "\n")


def merge_metadata(before: Metadata, now: Metadata, jobs: Sequence[Job], directory: Path) -> Metadata:
    """Return the metadata of the directory after these jobs, with the earlier evaluations in it.

    Raises:
        ConfigError: the earlier evaluation has a different model, or an environment with a different configuration.
    """
    differences = list(_differences(before, now, {job.name: job.evaluation for job in jobs}))
    if differences:
        more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        raise ConfigError(
            "other-evaluation",
            f"{directory} contains a different evaluation: {'; '.join(differences[:SHOWN])}{more}.",
            "To continue it, run the command that started it. Otherwise choose another directory with --save.",
        )
    rollouts = {name: each.rollouts_per_task for name, each in before.environments.items()}
    environments = {
        name: Environment(**asdict(each) | {"rollouts_per_task": max(each.rollouts_per_task, rollouts.get(name, 0))})
        for name, each in now.environments.items()
    }
    plugins = {
        (entry["kind"], entry["distribution"], entry["name"]): entry for entry in (*before.plugins, *now.plugins)
    }
    return Metadata(
        model=now.model,
        weights=now.weights,
        environments={**before.environments, **environments},
        plugins=list(plugins.values()),
    )


def _differences(before: Metadata, now: Metadata, plans: Mapping[str, EvaluationPlan]) -> Iterator[str]:
    if _identity(before) != _identity(now):
        yield f"its model is {before.shown_model}, not {now.shown_model}"
    for name in before.environments.keys() & now.environments.keys():
        was, is_now = before.environments[name], now.environments[name]
        if was.tasks != is_now.tasks:
            yield f"{name} had {was.tasks} tasks and has {is_now.tasks}"
        made_of, is_made_of = ({**each.reward_sources, **each.workflow_sources} for each in (was, is_now))
        for source in sorted(made_of.keys() & is_made_of.keys()):
            if made_of[source] != is_made_of[source]:
                yield f"the source of {source} of {name} has changed"
        one, other = (dict(_by_key(each.config)) for each in (was, is_now))
        for key in sorted(one.keys() | other.keys()):
            if one.get(key) == other.get(key) or key in MAY_CHANGE or not plans[name].acts(key):
                continue
            if not _names_the_model(key, before, now):
                yield f"{key} of {name} was {one.get(key)!r:.80} and is {other.get(key)!r:.80}"


def _identity(metadata: Metadata) -> str:
    """Return a text that identifies the model: the digest of its weights, or its name if there is no digest."""
    return metadata.model if metadata.weights is None else metadata.weights.sha256


def _by_key(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((".".join(path), value) for path, value in leaves(dict(config)))


def _names_the_model(key: str, before: Metadata, now: Metadata) -> bool:
    """True if a key contains the model's name. Different paths to the same model are not a difference."""
    names = {before.model, now.model}
    configs = [each.config for metadata in (before, now) for each in metadata.environments.values()]
    return all(dict(_by_key(config)).get(key) in names for config in configs)


def _file_name(environment: str) -> str:
    """Return a file name for an environment. It keeps letters, digits and ``-_.``, and escapes the rest."""
    return "".join(letter if letter.isalnum() or letter in "-_." else f"%{ord(letter):02x}" for letter in environment)


PLACES = (".", "backend/model", "backend", "backend/shards")
"""Directories with weights, relative to a model's directory or to a run's checkpoint of any backend."""
SUFFIXES = (".safetensors", ".bin", ".pt")
KEPT_ELSEWHERE = "tinker.json"
"""The file in a checkpoint whose service keeps the weights. It contains their path there."""
ADAPTER, BASE = "adapter_config.json", "base.json"
DIGITS = 12
"""Number of digits of a digest in a message."""


@dataclass(frozen=True)
class Weights:
    """Weights in files."""

    directory: str
    """The directory of the weights. For a checkpoint, with its step."""
    sha256: str
    """Digest of names and bytes of weight files, and of an adapter's base model. 270 MB take 0.2 s of CPU."""

    def __str__(self) -> str:
        return f"{self.directory} (weights {self.sha256[:DIGITS]})"


def find_weights(model: str) -> Weights | None:
    """Return the weights of a directory. None for any other name, such as `tiny`, a hub id or an address.

    Raises:
        OSError: a file cannot be read.
    """
    directory = Path(model).expanduser()
    if not directory.is_dir():
        return None
    directory = directory.resolve()
    files = next(filter(None, (list(_files(directory / place)) for place in PLACES)), None)
    if files is None:
        return None
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {sha256(file)}\n".encode())
    digest.update(_below(files[0].parent).encode())
    return Weights(str(directory), digest.hexdigest())


def _files(directory: Path) -> Iterator[Path]:
    for file in sorted(directory.iterdir()) if directory.is_dir() else ():
        if file.is_file() and (file.suffix in SUFFIXES or file.name == KEPT_ELSEWHERE):
            yield file


def _below(directory: Path) -> str:
    """Return the base model of an adapter. Empty if there is no adapter."""
    if not (directory / ADAPTER).is_file():
        return ""
    if (directory / BASE).is_file() and (
        known := json.loads((directory / BASE).read_text(encoding="utf-8")).get("sha256")
    ):
        return str(known)
    name = str(json.loads((directory / ADAPTER).read_text(encoding="utf-8")).get("base_model_name_or_path"))
    weights = find_weights(name)
    return name if weights is None else weights.sha256
