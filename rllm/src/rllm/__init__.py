"""The program of rllm: configuration, planning, training, runs, evaluation, and the command line.

Plugins import `rllm_core`. `docs/contributing/architecture.md` lists the names that tools may import from here.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
