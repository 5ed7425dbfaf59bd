"""Defaults of the schemas and of the backends' YAML files, which Hydra composes.

Each backend has ``rllm/backend/<name>.yaml`` in a directory of its package. Hydra resolves the references in that file
(a defaults list, other groups, packages). ``rllm.config.compose`` merges all other layers over it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import cache, lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from rllm.config.keys import DEFAULT, fill_defaults
from rllm.config.layers import BACKEND_GROUP, Layer, Tier
from rllm.config.paths import split_by
from rllm.config.yaml_text import yaml_error
from rllm_core.contracts.backend import BackendPlugin
from rllm_core.contracts.chosen import Registered
from rllm_core.errors import ConfigError
from rllm_core.notices import warn_once
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig

DIRECTORY = Path(__file__).parents[1] / "conf"
PRIMARY = "unified"
HYDRA_VERSION_BASE = "1.3"
_ONE_AT_A_TIME = RLock()
"""Hydra composes with process-wide state, so only one composition may run at a time."""


_composing_with: ContextVar[list[tuple[str, str]] | None] = ContextVar("composing_with", default=None)


@cache
def base_layer() -> Layer:
    """Return the defaults of the core's schema as a layer."""
    tree: dict[str, Any] = {}
    fill_defaults(tree, RunConfig)
    return Layer(DEFAULT, tree, Tier.PACKAGED)


def store_base_config() -> None:
    """Give Hydra the core's defaults as the config ``rllm/base``, which `unified.yaml` includes."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="base", node=base_layer().tree, group="rllm", package="_global_")


def packaged_layers(backend: Any, profile: str | None = None) -> list[Layer]:
    """The core's defaults and, above them, what the YAML file of a backend (its record) and of its profile change.

    Raises:
        ConfigError: a file of the backend is missing, misplaced or cannot be composed.
    """
    base = base_layer()
    if backend.config_yaml is None:
        return [base]
    origin = f"backend {backend.name}"
    plain = _composed_by_hydra(_sources(backend, None))
    tree = plain if profile is None else _composed_by_hydra(_sources(backend, profile))
    own = _own_part(tree, base.tree, backend, profile)
    if profile is None:
        return [base, Layer(origin, own, Tier.PACKAGED)]
    # Not the plain tree and a difference: a profile may compose other files, and then lacks keys of the plain one.
    same, changed = split_by(own, plain)
    return [base, Layer(origin, same, Tier.PACKAGED), Layer(f"{origin}, profile {profile}", changed, Tier.PACKAGED)]


class _Sources(NamedTuple):
    """The input from which Hydra composes a backend's values. It is the key of the cache."""

    option: str
    """Option of the config group for backends."""
    entries: tuple[tuple[str, str], ...]
    """Entries of the search path."""
    files: tuple[tuple[Path, int], ...]
    """YAML files, with the time of their last change in nanoseconds."""


@lru_cache(maxsize=32)
def _resolve_sources(sources: _Sources) -> dict[str, Any]:
    from omegaconf import OmegaConf

    return _plain(OmegaConf.create(_composed_by_hydra(sources)), resolve=True)


def packaged_values(backend: Any, profile: str | None) -> dict[str, Any]:
    """Return all packaged values for a backend (its plugin spec), with interpolations resolved."""
    return _resolve_sources(_sources(backend, profile))


def _sources(backend: Any, profile: str | None) -> _Sources:
    try:
        entries = [_entry(backend), *((backend.name, path) for path in backend.config_search_path)]
        files = [Path(backend.config_yaml())]
        if profile is not None:
            files.append(_profile_file(backend, profile))
    except ValueError as error:
        raise ConfigError(
            "bad-backend-config",
            f"Backend {backend.name!r} cannot be composed: {error}.",
            "Reinstall or fix its package.",
        ) from error
    option = backend.name if profile is None else f"{backend.name}/{profile}"
    stamped = tuple((file, file.stat().st_mtime_ns) for file in files)
    return _Sources(option, tuple(dict.fromkeys(entries)), stamped)


def _own_part(tree: dict[str, Any], base: dict[str, Any], backend: Any, profile: str | None) -> dict[str, Any]:
    """Return the values that the backend adds to the core's defaults, or changes in them."""
    _, own = split_by(tree, base)
    section = own.setdefault("rllm", {})
    file = backend.name if profile is None else f"{backend.name}/{profile}"
    if not isinstance(section, dict) or isinstance(section.get("backend"), dict):
        raise ConfigError(
            "bad-backend-config",
            f"The file rllm/backend/{file}.yaml of backend {backend.name!r} has its keys in the wrong place.",
            "It must begin with the line `# @package _global_`, and a section `rllm`, if any, is a mapping.",
        )
    if base["rllm"]["backend"] != backend.name:  # also where the backend's file forgets to say so
        section["backend"] = backend.name
    if profile is not None:
        section["profile"] = profile
    return own


def search_directory(backend: BackendPlugin[Any]) -> Path:
    """Return the directory that contains ``rllm/backend/<name>.yaml``.

    Raises:
        ValueError: the plugin spec has no such file. The message is a short reason.
    """
    if backend.config_yaml is None:
        raise ValueError("it has no YAML file")
    file = Path(backend.config_yaml()).absolute()
    if file.parts[-3:] != ("rllm", "backend", f"{backend.name}.yaml"):
        raise ValueError(f"its config_yaml is {file}, which must end in rllm/backend/{backend.name}.yaml")
    if not file.is_file():
        raise ValueError(f"its defaults are missing: there is no file {file}")
    return file.parents[2]


def _profile_file(backend: BackendPlugin[Any], profile: str) -> Path:
    """Return the YAML file of a profile of the backend.

    Raises:
        ValueError: the file does not exist. The message is a short reason.
    """
    file = search_directory(backend) / "rllm" / "backend" / backend.name / f"{profile}.yaml"
    if not file.is_file():
        raise ValueError(f"its profile {profile} is missing: there is no file {file}")
    return file


def search_path_entries() -> list[tuple[str, str]]:
    """Return provider and directory of every place for Hydra to search for our YAML files, the core's first."""
    current = _composing_with.get()
    if current is not None:
        return current
    # In a script with @hydra.main, all installed backends are used.
    return [("rllm-core", f"file://{DIRECTORY}"), *_entries_of_script(Registry.load().all("backend"))]


def _entries_of_script(backends: Iterable[Registered[Any]]) -> Iterator[tuple[str, str]]:
    """Yield the directories of all backends, and further directories of the chosen backend.

    Further directories are in other systems' packages. To find one, its package is imported, which may take seconds
    or fail.
    """
    words = [word.lstrip("+").partition("=") for word in sys.argv[1:]]
    chosen = [value for key, _, value in words if key == BACKEND_GROUP] or [base_layer().tree["rllm"]["backend"]]
    for registered in backends:
        backend = registered.plugin
        if backend.config_yaml is None:
            continue
        try:
            yield _entry(backend)
        except Exception as error:  # noqa: BLE001  (a broken backend that is not chosen must not stop a script)
            warn_once(f"backend {backend.name} cannot be composed: {error}")
            continue
        if backend.name in chosen[-1].split("/"):  # also `verl/cpu`, a profile, and `rllm-verl/verl`
            yield from ((backend.name, path) for path in backend.config_search_path)


def _entry(backend: Any) -> tuple[str, str]:
    return (f"backend {backend.name}", f"file://{search_directory(backend)}")


@lru_cache(maxsize=32)
def _composed_by_hydra(sources: _Sources) -> dict[str, Any]:
    """Return the primary configuration with an option of the backend group. Interpolations are not resolved."""
    import yaml
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    file = f"rllm/backend/{sources.option}.yaml"
    given = _composing_with.set(list(sources.entries))
    try:
        with _ONE_AT_A_TIME, _own_hydra(), initialize_config_dir(str(DIRECTORY), version_base=HYDRA_VERSION_BASE):
            return _plain(compose(PRIMARY, [f"{BACKEND_GROUP}={sources.option}"]), resolve=False)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise yaml_error(error, mark.name if mark else file) from error
    except Exception as error:  # (the file may ask for another system's package, whose import may fail in any way)
        known = isinstance(error, HydraException | OmegaConfBaseException)
        reason = " ".join(("" if known else f"{type(error).__name__}: ", *str(error).split()))
        raise ConfigError(
            "bad-backend-config",
            f"The configuration of backend {sources.option!r} cannot be composed: {reason}",
            f"Look at its file {file}.",
        ) from error
    finally:
        _composing_with.reset(given)


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Put aside the Hydra of a script that is under way: there can be one at a time."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.version import VersionBase

    under_way, base = GlobalHydra.instance(), VersionBase.instance().getbase()
    apart = copy(under_way)
    apart.clear()
    GlobalHydra.set_instance(apart)
    try:
        yield
    finally:
        GlobalHydra.set_instance(under_way)
        if under_way.is_initialized() and base is not None:
            VersionBase.instance().setbase(base)


def _plain(config: Any, *, resolve: bool) -> dict[str, Any]:
    from omegaconf import OmegaConf

    tree = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}
