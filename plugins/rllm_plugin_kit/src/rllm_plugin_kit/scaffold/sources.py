"""The function that `rllm plugins new --from` ports: found by its name in an installed package, or in a file."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rllm_core.errors import PluginError, did_you_mean

HOMES = {"verl": "verl.trainer.ppo.core_algos"}
"""Package -> the module to use if `--from` has only a function's name."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A function to port."""

    function: Callable[..., Any]
    name: str
    """The function's name in its module."""
    module: str
    """The module in an installed package. Empty for a file, which the new package contains."""
    file: Path | None
    """The file to copy into the new package. None for a function of an installed package."""

    @property
    def package(self) -> str:
        """The installed package: ``verl``. Empty for a file."""
        return self.module.partition(".")[0]

    @property
    def origin(self) -> str:
        """The function with its module or file, for text."""
        return f"{self.module}.{self.name}" if self.file is None else f"{self.file.name}:{self.name}"

    @property
    def requirement(self) -> str:
        """The requirement on the installed package, with its version as the lowest: ``verl>=0.9.1``."""
        try:
            return f"{self.package}>={version(self.package)}"
        except PackageNotFoundError:
            return self.package


def find_source(text: str) -> Source:
    """Return the function that a value of `--from` names.

    Args:
        text: ``PACKAGE:MODULE.FUNCTION``, ``PACKAGE:FUNCTION`` for a package in `HOMES`, or ``FILE.py:FUNCTION``.

    Raises:
        PluginError: there is no such function, or its module cannot be imported.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise PluginError(
            "bad-source",
            f"--from {text!r} does not name a function.",
            "Write PACKAGE:MODULE.FUNCTION, such as verl:compute_rloo_outcome_advantage, or FILE.py:FUNCTION.",
        )
    if place.endswith(".py"):
        return _find_in_file(Path(place), name)
    inner, _, function = name.removeprefix(f"{place}.").rpartition(".")
    module = f"{place}.{inner}" if inner else HOMES.get(place, place)
    hint = f"Install it: pip install {place}. For your own function write its file: --from my_file.py:{function}."
    loaded = _import(lambda: importlib.import_module(module), module, hint)
    return Source(function=_get_function(loaded, function, module), name=function, module=module, file=None)


def _find_in_file(file: Path, name: str) -> Source:
    if not file.is_file():
        raise PluginError("file-not-found", f"--from names {file}, which is no file.", "Correct its path.")

    def load() -> Any:
        spec = importlib.util.spec_from_file_location(f"_ported_{file.stem}", file)
        assert spec is not None and spec.loader is not None, "the name ends in .py"
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # Dataclasses look their module up.
        spec.loader.exec_module(module)
        return module

    loaded = _import(
        load, str(file), "The new package contains a copy of the file, so it must not import its neighbors."
    )
    return Source(function=_get_function(loaded, name, str(file)), name=name, module="", file=file)


def _import(load: Callable[[], Any], what: str, hint: str) -> Any:
    try:
        return load()
    except Exception as error:
        raise PluginError(
            "source-not-importable", f"{what} cannot be imported: {type(error).__name__}: {error}.", hint
        ) from error


def _get_function(module: Any, name: str, where: str) -> Callable[..., Any]:
    names = [each for each, value in vars(module).items() if inspect.isfunction(value)]
    function = getattr(module, name, None)
    if inspect.isfunction(function):
        return function
    problem = f"has no function {name!r}" if function is None else f"has {name!r}, which is not a function"
    hint = did_you_mean(name, names) or f"Its functions: {', '.join(sorted(names)[:4]) or 'none'}."
    raise PluginError("source-not-found", f"{where} {problem}.", hint)
