"""Facts about a ported function that its signature does not show, measured by the contract's own tests."""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from rllm_core.contracts.estimator import EstimatorPlugin, Scope
from rllm_core.contracts.loss import LossPlugin
from rllm_core.errors import LossError, PluginError
from rllm_plugin_kit.estimator import EstimatorContract
from rllm_plugin_kit.plugin import PluginContract
from rllm_plugin_kit.scaffold.package import write
from rllm_plugin_kit.scaffold.porting import Bound, Port

_NEXT_BOUND: Mapping[Bound, Bound] = MappingProxyType({"none": "token", "token": "row", "row": "row"})
SCOPES: tuple[Scope, ...] = ("trajectory", "group", "role")


def measure(port: Port, files: Mapping[str, str], module: str) -> Port:
    """Return the port with its measured facts, and with notes about batches that the function does not support.

    Args:
        port: with any facts.
        files: of its package.
        module: the package's module in `files`. No installed module has this name.
    """
    with _import_plugin(port, files, module) as plugin:
        return _measure_loss(port, plugin) if isinstance(plugin, LossPlugin) else _measure_estimator(port, plugin)


def _measure_estimator(port: Port, plugin: EstimatorPlugin[Any]) -> Port:
    def find_problem(test: str, *options: Mapping[str, Any], scope: Scope = "group") -> str | None:
        return _find_problem(EstimatorContract, replace(plugin, scope=scope), test, *options)

    problems = {scope: find_problem("declared_scope_is_exact", scope=scope) for scope in SCOPES}
    exact = [scope for scope, problem in problems.items() if problem is None]
    if not exact:
        return replace(port, notes=(str(problems["group"]),))
    centres = exact[0] == "trajectory" or find_problem("equal_rewards_give_zero_advantages", {}) is None
    problem = find_problem("smallest_batches_work", {})
    return replace(port, scope=exact[0], centres=centres, notes=() if problem is None else (problem,))


def _measure_loss(port: Port, plugin: LossPlugin[Any]) -> Port:
    # It imports torch.
    from rllm_plugin_kit.loss import LossContract, has_ratio

    failure = _find_failure(LossContract, plugin, "it_returns_one_finite_loss_per_token", {})
    if failure is not None:
        if isinstance(failure.__cause__, LossError) and failure.__cause__.code == "bad-loss":
            raise failure.__cause__  # A mean that is no sum of token losses.
        return replace(port, notes=(str(failure),))
    is_exact = _find_problem(LossContract, plugin, "gradient_matches_the_numeric_slope", {}) is None
    overflows = _find_problem(LossContract, plugin, "extreme_ratios_stay_finite", {})
    return replace(
        port,
        is_exact=is_exact,
        has_ratio=has_ratio(plugin.load(), plugin.params()),
        bound=_NEXT_BOUND[port.bound] if overflows else port.bound,
        notes=(overflows,) if overflows and port.bound == "row" else (),
    )


def _find_problem(
    contract: type[PluginContract[Any]], plugin: Any, test: str, *options: Mapping[str, Any]
) -> str | None:
    """Return the message of a test of the contract, None if it passes."""
    failure = _find_failure(contract, plugin, test, *options)
    return None if failure is None else str(failure)


def _find_failure(
    contract: type[PluginContract[Any]], plugin: Any, test: str, *options: Mapping[str, Any]
) -> AssertionError | None:
    """Return the failure of a test of the contract, None if it passes."""
    probe = type("Probe", (contract,), {"record": lambda self: plugin})()
    try:
        getattr(probe, f"test_{test}")(*map(probe.params_from, options))
    except AssertionError as error:
        return error
    return None


def _import_modules(module: str, port: Port) -> ModuleType:
    """Return the module of the plugin spec. Import the modules that it loads, so that their errors appear here."""
    try:
        for name in ("options", port.kind):
            importlib.import_module(f"{module}.{name}")
        return importlib.import_module(f"{module}.plugin")
    except Exception as error:
        raise PluginError(
            "source-not-importable",
            f"The package for {port.source.origin} cannot be imported: {type(error).__name__}: {error}.",
            "Rename the argument, or change the default, that the message names: in a file, write a function that "
            "calls this one, and port it: --from my_file.py:my_function.",
        ) from error


@contextmanager
def _import_plugin(
    port: Port, files: Mapping[str, str], module: str
) -> Iterator[EstimatorPlugin[Any] | LossPlugin[Any]]:
    with tempfile.TemporaryDirectory() as directory:
        write(files, Path(directory))
        sys.path.insert(0, f"{directory}/src")
        if port.source.file is not None:
            # The file has run once. A second time, verl's decorators would reject its names.
            original = sys.modules[f"{module}.original"] = ModuleType(f"{module}.original")
            setattr(original, port.source.symbol, port.source.owner or port.source.function)
        try:
            hooks = _import_modules(module, port)
            (plugin,) = hooks.rllm_losses() if port.kind == "loss" else hooks.rllm_estimators()
            yield plugin
        finally:
            sys.path.remove(f"{directory}/src")
            for name in [name for name in sys.modules if name.partition(".")[0] == module]:
                del sys.modules[name]
