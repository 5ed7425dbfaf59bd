"""What libraries say while they start, that is of no use to who trains; errors and warnings of theirs stay."""

from __future__ import annotations

import logging
import os

OF_TORCH_FX = "torch.fx._symbolic_trace"
"""Warns those who use it, which tensordict does."""


def quieten() -> None:
    """Progress is shown by rllm; the bars and remarks of the libraries below would break into it."""
    from transformers.utils import logging as of_transformers

    of_transformers.disable_progress_bar()
    logging.getLogger(OF_TORCH_FX).setLevel(logging.ERROR)
    # Read by verl when it is imported; a user's own choice counts.
    os.environ.setdefault("VERL_LOGGING_LEVEL", "WARNING")
