"""The extras of rllm-envs, each with the packages of another project."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from rllm_core.errors import PluginError


@dataclass(frozen=True)
class Extra:
    """An extra, and the modules that it installs. Our modules that use them are imported when a run needs them."""

    name: str
    modules: tuple[str, ...]

    def load_from(self, module: str, name: str) -> Callable[[], Any]:
        """Return a function that imports `module` and returns `name` from it. Use it as the `load` of a plugin."""
        return lambda: self._import(module, name)

    def call_lazily(self, module: str, name: str) -> Callable[..., Any]:
        """Return a function that imports `module` and calls its function `name`. Use it for the checks of a plugin."""
        return lambda *arguments: self._import(module, name)(*arguments)

    def check_installed(self) -> None:
        """Raise PluginError with the pip command if a module of the extra is not installed."""
        for module in self.modules:
            if find_spec(module) is None:
                raise PluginError(
                    "missing-package",
                    f"This environment needs the module {module}, which is not installed. "
                    f"Extra of rllm-envs: {self.name}.",
                    f"Run: pip install 'rllm-envs[{self.name}]'",
                )

    def _import(self, module: str, name: str) -> Any:
        self.check_installed()
        return getattr(import_module(module), name)
