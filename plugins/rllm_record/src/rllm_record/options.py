"""Options of what rllm-record offers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params


class JournalParams(Params):
    """Of the observer `journal`."""

    keep: Literal["unfinished", "run", "off"] = Field(
        "unfinished",
        description="`unfinished`: model calls of rounds that no checkpoint holds; `run`: those of all rounds, and the "
        "digests of all checkpoints, for `rllm replay`; `off`: none.",
    )


class RecordParams(Params):
    """Of the tracker `record`."""

    record: Literal["off", "fates", "tokens"] = Field(
        "fates",
        description="`fates`: ids, numbers and rules of every trajectory; `tokens`: texts and tokens too; `off`.",
    )
