"""Gives Hydra the core's defaults, and the places of the YAML files of rllm and of all installed backends.

Hydra finds this by itself: it looks through every package in the namespace ``hydra_plugins``.
"""

from __future__ import annotations

import sys

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin


class RllmSearchPath(SearchPathPlugin):
    """Adds ``rllm/base``, ``pkg://rllm.conf`` and the directories that hold ``rllm/backend/<name>.yaml``."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        asked_for = any("rllm.conf" in (element.path or "") for element in search_path.get_path())
        if not asked_for and "rllm_core" not in sys.modules:
            return  # an application that has nothing to do with us

        from rllm.config.packaged import search_path_entries, store_base_config

        store_base_config()
        for provider, path in search_path_entries():
            search_path.append(provider, path)
