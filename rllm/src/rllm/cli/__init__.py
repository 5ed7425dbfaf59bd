"""The command line.

What tools may import of it is in ``__init__.pyi``; see docs/contributing/architecture.md.
"""

from rllm_core.lazy import names_in_stub

__getattr__, __dir__, __all__ = names_in_stub(__name__, __file__)
