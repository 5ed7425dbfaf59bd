"""The training loop: `loop` makes the steps and says when validation runs, `schedule` which tasks are played when.

What tools may import of it is in ``__init__.pyi``; see docs/contributing/architecture.md.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
