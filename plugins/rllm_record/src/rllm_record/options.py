"""Options of the observer `journal` and of the tracker `record`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params


class JournalParams(Params):
    """Options of the observer `journal`."""

    keep: Literal["unfinished", "run", "off"] = Field(
        "unfinished",
        description="Model calls to keep. `unfinished`: calls of steps that no checkpoint contains yet. `run`: calls "
        "of all steps, and a digest of each checkpoint, for `rllm replay`. `off`: none.",
    )


class RecordParams(Params):
    """Options of the tracker `record`."""

    record: Literal["off", "fates", "tokens"] = Field(
        "fates",
        description="Contents of the run's record. `fates`: the ids, rewards and outcome of each trajectory, and the "
        "rule that dropped it. `tokens`: its text and tokens too. `off`: no record.",
    )
