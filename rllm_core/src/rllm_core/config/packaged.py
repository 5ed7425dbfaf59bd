"""What ships in packages: the core's YAML files and those of the backends, composed by Hydra.

Each backend has ``rllm/backend/<name>.yaml`` in a folder of its own package. Hydra resolves what such a file asks for
(a defaults list, other groups, packages); everything above it is laid on by ``rllm_core.config.compose``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

from rllm_core.config.layers import Layer, Tier, layer_from_file, yaml_error
from rllm_core.config.overrides import BACKEND_GROUP
from rllm_core.contracts.chosen import Registered
from rllm_core.errors import ConfigError
from rllm_core.notices import warn_once
from rllm_core.plugins.backend_files import profile_file, search_folder
from rllm_core.plugins.registry import Registry

DEFAULT = "default"
FOLDER = Path(__file__).parents[1] / "conf"
PRIMARY = "unified"
HYDRA_VERSION_BASE = "1.3"
_ONE_AT_A_TIME = RLock()
"""Hydra keeps what it composes in places of the whole process."""


_composing_with: ContextVar[list[tuple[str, str]] | None] = ContextVar("composing_with", default=None)


def base_layer() -> Layer:
    """The core's defaults, ``rllm/base.yaml``."""
    file = FOLDER / "rllm" / "base.yaml"
    return _read_base(file, file.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read_base(file: Path, stamp: int) -> Layer:
    """Read once: parsing takes longer than merging. `stamp` is for the cache alone."""
    return layer_from_file(file, DEFAULT, Tier.PACKAGED)


def packaged_layers(backend: Any, profile: str | None = None) -> list[Layer]:
    """The core's defaults and, above them, what the YAML file of a backend (its record) and of its profile change.

    Raises:
        ConfigError: a file of the backend is missing, misplaced or cannot be composed.
    """
    base = base_layer()
    if backend.config_yaml is None:
        return [base]
    origin = f"backend {backend.name}"
    plain = _composed_by_hydra(*_sources(backend, None))
    if profile is None:
        return [base, Layer(origin, _own_part(plain, base.tree, backend, None), Tier.PACKAGED)]
    tree = _composed_by_hydra(*_sources(backend, profile))
    # Not the plain tree and a difference: a profile may compose other files, and then lacks keys of the plain one.
    same, changed = _split_by(_own_part(tree, base.tree, backend, profile), plain)
    return [base, Layer(origin, same, Tier.PACKAGED), Layer(f"{origin}, profile {profile}", changed, Tier.PACKAGED)]


def packaged_values(backend: Any, profile: str | None) -> dict[str, Any]:
    """All that the packages say for a backend (its record), interpolations resolved."""
    with _ONE_AT_A_TIME:
        return _resolved(*_sources(backend, profile))


def _sources(backend: Any, profile: str | None) -> tuple[str, str, tuple[tuple[str, str], ...], tuple[int, ...]]:
    """What Hydra composes a backend's values from: the arguments of `_composed_by_hydra`."""
    try:
        entries = [_entry(backend), *((backend.name, path) for path in backend.config_search_path)]
        files = [FOLDER / "rllm" / "base.yaml", Path(backend.config_yaml())]
        if profile is not None:
            files.append(profile_file(backend, profile))
    except ValueError as error:
        raise ConfigError(
            f"Backend {backend.name!r} cannot be composed: {error}.", "Reinstall or mend its package."
        ) from error
    stamps = tuple(file.stat().st_mtime_ns for file in files)
    option = backend.name if profile is None else f"{backend.name}/{profile}"
    return str(FOLDER), option, tuple(dict.fromkeys(entries)), stamps


def _own_part(tree: dict[str, Any], base: dict[str, Any], backend: Any, profile: str | None) -> dict[str, Any]:
    """What the backend adds to the core's defaults, or changes in them."""
    own = _difference(tree, base)
    section = own.setdefault("rllm", {})
    file = backend.name if profile is None else f"{backend.name}/{profile}"
    if not isinstance(section, dict) or isinstance(section.get("backend"), dict):
        raise ConfigError(
            f"The file rllm/backend/{file}.yaml of backend {backend.name!r} has its keys in the wrong place.",
            "It must begin with the line `# @package _global_`, and a section `rllm`, if any, is a mapping.",
        )
    if base["rllm"]["backend"] != backend.name:  # also where the backend's file forgets to say so
        section["backend"] = backend.name
    if profile is not None:
        section["profile"] = profile
    return own


def search_path_entries() -> list[tuple[str, str]]:
    """Provider and folder of every place where Hydra shall look for our YAML files, the core's first."""
    current = _composing_with.get()
    if current is not None:
        return current
    # A script with @hydra.main: what is installed counts.
    return [("rllm-core", f"file://{FOLDER}"), *_entries_of_script(Registry.load().all("backend"))]


def _entries_of_script(backends: Iterable[Registered[Any]]) -> Iterator[tuple[str, str]]:
    """The folders of all backends; what else a backend's file asks for only of the one that is chosen.

    Looking into another system's package imports it, which may take seconds, or fail.
    """
    words = [word.lstrip("+").partition("=") for word in sys.argv[1:]]
    chosen = [value for key, _, value in words if key == BACKEND_GROUP] or [base_layer().tree["rllm"]["backend"]]
    for registered in backends:
        backend = registered.plugin
        if backend.config_yaml is None:
            continue
        try:
            yield _entry(backend)
        except Exception as error:  # noqa: BLE001  (a backend that nobody chose must not stop a script)
            warn_once(f"backend {backend.name} cannot be composed: {error}")
            continue
        if backend.name in chosen[-1].split("/"):  # also `verl/cpu`, a profile, and `rllm-verl/verl`
            yield from ((backend.name, path) for path in backend.config_search_path)


def _entry(backend: Any) -> tuple[str, str]:
    return (f"backend {backend.name}", f"file://{search_folder(backend)}")


@lru_cache(maxsize=32)
def _composed_by_hydra(
    folder: str, option: str, entries: tuple[tuple[str, str], ...], stamps: tuple[int, ...]
) -> dict[str, Any]:
    """The primary configuration with that option of the group of backends. `stamps` are for the cache alone."""
    with _ONE_AT_A_TIME:
        return _compose_by_hydra(folder, option, entries)


@lru_cache(maxsize=32)
def _resolved(
    folder: str, option: str, entries: tuple[tuple[str, str], ...], stamps: tuple[int, ...]
) -> dict[str, Any]:
    """The same with interpolations resolved."""
    from omegaconf import OmegaConf

    tree = OmegaConf.to_container(OmegaConf.create(_composed_by_hydra(folder, option, entries, stamps)), resolve=True)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _compose_by_hydra(folder: str, option: str, entries: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    import yaml
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    given = _composing_with.set(list(entries))
    try:
        with _own_hydra(), initialize_config_dir(folder, version_base=HYDRA_VERSION_BASE):
            composed = compose(PRIMARY, [f"rllm/backend={option}"])
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise yaml_error(error, mark.name if mark else f"rllm/backend/{option}.yaml") from error
    except Exception as error:  # (the file may ask for another system's package, whose import may fail in any way)
        known = isinstance(error, HydraException | OmegaConfBaseException)
        reason = " ".join(("" if known else f"{type(error).__name__}: ", *str(error).split()))
        raise ConfigError(
            f"The configuration of backend {option!r} cannot be composed: {reason}",
            f"Look at its file rllm/backend/{option}.yaml.",
        ) from error
    finally:
        _composing_with.reset(given)
    tree = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


@contextmanager
def _own_hydra() -> Iterator[None]:
    """Put aside the Hydra of a script that is under way: there can be one at a time."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.version import VersionBase

    hydra, version = GlobalHydra.instance().hydra, VersionBase.instance().version_base
    GlobalHydra.instance().hydra = None
    try:
        yield
    finally:
        # On the way out Hydra puts a copy in the place of the instance that was there.
        GlobalHydra.instance().hydra = hydra
        VersionBase.instance().version_base = version


def _difference(tree: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """What of `tree` is not in `base` with the same value."""
    changed = {}
    for key, value in tree.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            if inner := _difference(value, base[key]):
                changed[key] = inner
        elif key not in base or base[key] != value or type(base[key]) is not type(value):
            changed[key] = value
    return changed


def _split_by(tree: dict[str, Any], other: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of `tree` that `other` has too, and those that it has not."""
    same: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value and isinstance(other.get(key), dict):
            inner_same, inner_changed = _split_by(value, other[key])
            same |= {key: inner_same} if inner_same else {}
            changed |= {key: inner_changed} if inner_changed else {}
        else:
            equal = key in other and type(other[key]) is type(value) and other[key] == value
            (same if equal else changed)[key] = value
    return same, changed
