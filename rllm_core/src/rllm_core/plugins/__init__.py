"""Discovery, checks and choice of plugins. Plugin authors need one name from here: ``hookimpl``.

A name is imported when it is used, because listing commands needs this package but not pluggy.
"""

from rllm_core.lazy import names_in_stub

__getattr__, __dir__ = names_in_stub(__name__, __file__)
