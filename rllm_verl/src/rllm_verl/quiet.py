"""Switches off start messages of libraries that users do not need. Their errors and warnings are kept."""

from __future__ import annotations

import logging
import os

OF_TORCH_FX = "torch.fx._symbolic_trace"
"""A logger that warns about its use by tensordict."""


def quieten() -> None:
    """Switch off the libraries' progress bars and messages, because they would interrupt rllm's own progress lines."""
    from transformers.utils import logging as of_transformers

    of_transformers.disable_progress_bar()
    logging.getLogger(OF_TORCH_FX).setLevel(logging.ERROR)
    # verl reads this on import. A value that the user has set is kept.
    os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")
