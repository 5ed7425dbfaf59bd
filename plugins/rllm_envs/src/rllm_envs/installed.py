"""The packages of other projects, each behind an extra of rllm-envs."""

from __future__ import annotations

from importlib.util import find_spec

from rllm_core.errors import PluginError


def require(package: str, extra: str) -> None:
    """Raise PluginError with the pip command if `package`, which an extra installs, is not installed."""
    if find_spec(package) is None:
        raise PluginError(
            "missing-package",
            f"This environment needs the module {package}, which is not installed. Extra of rllm-envs: {extra}.",
            f"Run: pip install 'rllm-envs[{extra}]'",
        )
