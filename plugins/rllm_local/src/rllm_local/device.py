"""From `model.device` to a device of torch."""

from __future__ import annotations

import torch

from rllm_core.errors import ConfigError


def find_device(name: str) -> torch.device:
    """The device of a name; `auto` is CUDA where there is one.

    Raises:
        ConfigError: there is none of that name, or it cannot be used.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "no-gpu", f"model.device={name!r}, and torch finds no CUDA device.", "Use model.device=auto or =cpu."
        )
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            "bad-value", f"model.device={name!r} cannot be used: {error}.", "Use auto, cpu or cuda."
        ) from error
    return device
