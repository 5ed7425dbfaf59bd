"""What authors of plugins write against: one file per kind, and what plugins are given.

    from rllm_core.contracts import Advantages, EstimatorPlugin, Params
    from rllm_core.plugins import hookimpl

Files are imported when a name of theirs is asked for; ``__init__.pyi`` lists the names.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
