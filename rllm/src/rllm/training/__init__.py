"""The training loop. `loop` runs the steps and decides when to validate, `schedule` decides the order of tasks.

``__init__.pyi`` lists the names that tools may import from here. See docs/contributing/architecture.md.
"""

from rllm_core.lazy import names_in_stub

__getattr__, __dir__ = names_in_stub(__name__, __file__)
