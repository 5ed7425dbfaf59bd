"""The packages of other projects, each behind an extra of rllm-envs."""

from __future__ import annotations

from importlib.util import find_spec

from rllm_core.errors import PluginError


def require(package: str, extra: str) -> None:
    """Raise PluginError with the pip command if `package`, which an extra installs, is not installed."""
    if find_spec(package) is None:
        raise PluginError(
            "missing-package",
            f"Environment {package!r} needs the package {extra}, which is not installed.",
            f"Run: pip install 'rllm-envs[{extra}]'",
        )
