"""The two markers that tie plugins to the core: ``hookspec`` on our side, ``hookimpl`` on theirs."""

import pluggy

PROJECT = "rllm"
"""The name pluggy ties markers and manager together by."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
