"""What authors of plugins write against: one file per kind, and what plugins are given.

    from rllm_core.contracts import Advantages, EstimatorPlugin, Params
    from rllm_core.plugins import hookimpl

Files are imported when a name of theirs is asked for; ``__init__.pyi`` lists the names.
"""

from rllm_core.lazy import names_in_stub

__getattr__, __dir__, __all__ = names_in_stub(__name__, __file__)
