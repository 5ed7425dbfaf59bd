"""The two markers that connect plugins to the core: ``hookspec`` for the core, ``hookimpl`` for plugins."""

import pluggy

PROJECT = "rllm"
"""The project name that pluggy uses to match markers and manager."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
