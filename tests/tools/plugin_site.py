"""Plugins for tests. A directory with a module and a dist-info is an installed plugin."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rllm_core.contracts.estimator import Advantages, EstimatorPlugin
from rllm_core.contracts.params import NoParams
from rllm_core.plugins.registry import Registry
from rllm_core.plugins.specs import KINDS

ESTIMATOR = """
from rllm_core.contracts.estimator import Advantages, EstimatorPlugin
from rllm_core.plugins import hookimpl

def raw(inputs, params):
    return Advantages(values=inputs.rewards)

@hookimpl
def rllm_estimators():
    return [EstimatorPlugin(name="{name}", summary="The reward itself.", load=lambda: raw)]
"""


class Site:
    """A directory of installed plugins, first on the path of this process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.distributions: list[str] = []
        self.modules: list[str] = []

    def install(
        self,
        distribution: str,
        code: str,
        *,
        entry_point: str = "",
        module: str = "",
        version: str = "1.0",
        metadata: str = "",
    ) -> None:
        """Install a plugin. Plugins that share a module set `module`. `entry_point` replaces the distribution's name.

        `metadata` is lines of the distribution's, such as ``Requires-Dist: rllm-core<0.2``.
        """
        module = module or distribution.replace("-", "_").lower()
        (self.directory / f"{module}.py").write_text(code)
        info = self.install_package(distribution, version, metadata)
        (info / "entry_points.txt").write_text(f"[rllm.plugins]\n{entry_point or distribution} = {module}\n")
        self.distributions.append(distribution)
        self.modules.append(module)

    def install_package(self, distribution: str, version: str, metadata: str = "") -> Path:
        """Write only metadata, and return its directory."""
        info = self.directory / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        head = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (info / "METADATA").write_text(f"{head}{metadata}")
        return info

    def install_estimator(self, distribution: str, name: str, version: str = "1.0", metadata: str = "") -> None:
        self.install(distribution, ESTIMATOR.replace("{name}", name), version=version, metadata=metadata)

    def load(self, block: str = "") -> Registry:
        """Return a registry of the core and the plugins installed here, without other plugins of this machine."""
        return Registry.load(allow=self.distributions, environ={"RLLM_BLOCK_PLUGINS": block})


@contextmanager
def installed_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Yield a site in an empty directory, and forget its modules afterwards."""
    monkeypatch.syspath_prepend(directory)
    site = Site(directory)
    yield site
    for module in site.modules:
        sys.modules.pop(module, None)


def estimator_record(name: str = "raw", **changes: object) -> EstimatorPlugin[NoParams]:
    """Return a plugin spec, which is a valid one with the given changes."""

    def raw(inputs: object, params: object) -> Advantages:
        raise NotImplementedError

    fields = {"name": name, "summary": "The reward itself.", "load": lambda: raw}
    return EstimatorPlugin(**{**fields, **changes})  # type: ignore[arg-type]


def plugin_example(kind: str) -> str:
    """Return the module in the docstring of a kind's spec class."""
    _, _, example = (inspect.getdoc(KINDS[kind].record) or "").partition("::\n")
    return textwrap.dedent(example)
