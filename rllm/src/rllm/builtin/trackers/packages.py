"""Client libraries of trackers: not installed with the core, and missed by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from rllm_core.errors import PluginError


def needing(package: str, tracker: str, load: Callable[[], Any]) -> Callable[[], Any]:
    """Return a tracker's `load` that first checks for `package`. The extra with the tracker's name installs it."""

    def load_with_package() -> Any:
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            if error.name != package:  # the package is installed, but one of its dependencies is not
                raise
            raise PluginError(
                "missing-package",
                f"tracker {tracker!r} needs the package {package}, which is not installed.",
                f"pip install 'rllm[{tracker}]'",
            ) from error
        return load()

    return load_with_package
