"""rllm-core: data, pipeline, extension points and command line of rllm.

What a program needs is imported when it is first asked for: most commands need none of it. ``__init__.pyi`` lists it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = "0.1.0"
