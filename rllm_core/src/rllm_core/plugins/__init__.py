"""How plugins are found, checked and chosen. Plugin authors need one name from here: ``hookimpl``.

Names are imported when they are asked for: listing commands needs this package, and not pluggy.
"""

from rllm_core.lazy import names_in_stub

__getattr__, __dir__, __all__ = names_in_stub(__name__, __file__)
