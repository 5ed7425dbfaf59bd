"""How plugins are found, checked and chosen. Plugin authors need one name from here: ``hookimpl``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllm_core.plugins.markers import hookimpl

__all__ = ["hookimpl"]


def __getattr__(name: str) -> Any:
    """Import ``hookimpl`` when it is asked for: listing commands needs this package, and not pluggy."""
    if name != "hookimpl":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rllm_core.plugins.markers import hookimpl

    return hookimpl
