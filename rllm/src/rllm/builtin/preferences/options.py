"""Options of the stage `prefer`, in a separate module so that listing plugins does not import numpy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params


class PreferParams(Params):
    """Options of the stage ``prefer``."""

    loss: Literal["dpo", "ipo", "kto"] = Field(
        "dpo", description="Loss. `dpo` and `ipo` compare two completions. `kto` needs one completion with a label."
    )
    beta: float = Field(0.1, gt=0, description="Strength with which the model stays near the reference model.")
    desirable_weight: float = Field(1.0, ge=0, description="Weight of good completions in `kto`.")
    undesirable_weight: float = Field(1.0, ge=0, description="Weight of bad completions in `kto`.")
