"""How plugins are found, checked and chosen. Plugin authors need one name from here: ``hookimpl``."""

from rllm_core.plugins.markers import hookimpl

__all__ = ["hookimpl"]
