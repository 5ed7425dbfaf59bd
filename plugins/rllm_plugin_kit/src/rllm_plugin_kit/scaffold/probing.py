"""Facts about a ported estimator that its signature does not show, measured by the contract's own tests."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from rllm_core.contracts.estimator import EstimatorPlugin, Scope
from rllm_plugin_kit.estimator import EstimatorContract
from rllm_plugin_kit.scaffold.package import write
from rllm_plugin_kit.scaffold.porting import Port

SCOPES: tuple[Scope, ...] = ("trajectory", "group", "role")


def measure(port: Port, files: Mapping[str, str], module: str) -> Port:
    """Return the port with its scope, with `centres`, and with notes about batches that the function does not support.

    Args:
        port: with any scope.
        files: of its package.
        module: the package's module in `files`. No installed module has this name.
    """
    with _import_plugin(port, files, module) as plugin:
        problems = {scope: _find_problem(replace(plugin, scope=scope), "declared_scope_is_exact") for scope in SCOPES}
        exact = [scope for scope, problem in problems.items() if problem is None]
        if not exact:
            return replace(port, notes=(str(problems["group"]),))
        centres = _find_problem(plugin, "equal_rewards_give_zero_advantages", {}) is None
        problem = _find_problem(plugin, "smallest_batches_work", {})
    return replace(
        port,
        scope=exact[0],
        centres=centres or exact[0] == "trajectory",
        notes=() if problem is None else (problem,),
    )


def _find_problem(plugin: EstimatorPlugin[Any], test: str, *options: Mapping[str, Any]) -> str | None:
    """Return the message of a test of the contract, None if it passes."""

    class Probe(EstimatorContract):
        def record(self) -> EstimatorPlugin[Any]:
            return plugin

    probe = Probe()
    try:
        getattr(probe, f"test_{test}")(*map(probe.params_from, options))
    except AssertionError as error:
        return str(error)
    return None


@contextmanager
def _import_plugin(port: Port, files: Mapping[str, str], module: str) -> Iterator[EstimatorPlugin[Any]]:
    with tempfile.TemporaryDirectory() as directory:
        write(files, Path(directory))
        sys.path.insert(0, f"{directory}/src")
        if port.source.file is not None:
            # The file has run once. A second time, verl's decorators would reject its names.
            original = sys.modules[f"{module}.original"] = ModuleType(f"{module}.original")
            setattr(original, port.source.name, port.source.function)
        try:
            (plugin,) = importlib.import_module(f"{module}.plugin").rllm_estimators()
            yield plugin
        finally:
            sys.path.remove(f"{directory}/src")
            for name in [name for name in sys.modules if name.partition(".")[0] == module]:
                del sys.modules[name]
