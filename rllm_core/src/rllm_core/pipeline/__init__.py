"""The stages of one training step, with checks of their order.

``__init__.pyi`` lists the names that tools may import; see docs/contributing/architecture.md.
"""

from rllm_core.lazy import names_in_stub

__getattr__, __dir__ = names_in_stub(__name__, __file__)
