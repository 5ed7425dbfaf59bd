"""Types of attention of a model's layers."""

from __future__ import annotations

from typing import Any

SLIDING = "sliding_attention"
FULL = "full_attention"


def layer_types(config: Any) -> set[str]:
    """Return the types of the layers. Models without `layer_types` have the same attention in all layers."""
    alike = SLIDING if getattr(config, "sliding_window", None) else FULL
    return set(getattr(config, "layer_types", None) or [alike])
