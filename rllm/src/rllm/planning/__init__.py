"""Turn a configuration into a plan: look up every name and check every setting.

``__init__.pyi`` lists the names that tools may import from here. See docs/contributing/architecture.md.
"""

from rllm_core.lazy import names_in_stub

__getattr__, __dir__ = names_in_stub(__name__, __file__)
