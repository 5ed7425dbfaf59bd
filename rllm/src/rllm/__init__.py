"""The program of rllm: configuration, planning, training, runs, evaluation, and the command line.

Plugins import `rllm_core`. `docs/contributing/architecture.md` lists the names that tools may import from here.
"""

from rllm_core.lazy import names_in_stub

__getattr__, __dir__ = names_in_stub(__name__, __file__)
