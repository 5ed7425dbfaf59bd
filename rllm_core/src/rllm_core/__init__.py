"""rllm-core: what plugins of rllm are written against.

Names of the program, like ``AgentTrainer``, can be imported from here too. They are loaded from the package ``rllm`` on
first use. ``__init__.pyi`` lists all names.
"""

from typing import Any

from rllm_core.lazy import names_in_stub

__version__ = "0.1.0"

_import_name, __dir__ = names_in_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _import_name(name)
    except ModuleNotFoundError as error:
        if error.name != "rllm":
            raise
        raise ImportError(
            f"rllm_core.{name} needs the package rllm, which is not installed.\nhint: pip install rllm"
        ) from error
