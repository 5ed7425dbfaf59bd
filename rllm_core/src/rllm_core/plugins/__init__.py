"""How plugins are found, checked and chosen. Plugin authors need one name from here: ``hookimpl``.

Names are imported when they are asked for: listing commands needs this package, and not pluggy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
