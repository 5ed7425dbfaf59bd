"""The public interface for plugin authors: one file per kind of plugin, and the types that plugins receive.

    from rllm_core.contracts import Advantages, EstimatorPlugin, Params
    from rllm_core.plugins import hookimpl

A file is imported when one of its names is used. ``__init__.pyi`` lists the names.
"""

from rllm_core.lazy import names_in_stub

__getattr__, __dir__ = names_in_stub(__name__, __file__)
