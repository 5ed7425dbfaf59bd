"""Tells Hydra where the YAML files of the core and of all installed backends are.

Hydra finds this by itself: it looks through every package in the namespace ``hydra_plugins``.
"""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class RllmSearchPath(SearchPathPlugin):
    """Adds ``pkg://rllm_core.conf`` and the folders that hold ``rllm/backend/<name>.yaml``."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        from rllm_core.config.packaged import search_path_entries

        for provider, path in search_path_entries():
            search_path.append(provider, path)
