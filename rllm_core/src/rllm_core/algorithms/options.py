"""Options of the core's own algorithms. Apart from the algorithms so that listing plugins imports no numpy.

A field with the name of a config key (`eps_clip` of ``rllm.algorithm.eps_clip``) takes that key's value.
"""

from __future__ import annotations

from pydantic import Field

from rllm_core.contracts.plugin import Params


class GrpoParams(Params):
    norm_adv_by_std_in_grpo: bool = Field(True, description="Divide by the group's standard deviation.")


class PpoParams(Params):
    eps_clip: float = Field(0.2, gt=0, description="Importance ratios below 1 - eps_clip are clipped.")
    eps_clip_high: float | None = Field(None, gt=0, description="Upper bound 1 + eps_clip_high; null means eps_clip.")


class EpisodeRejectionParams(Params):
    min_partial_solve_tasks: int = Field(1, gt=0, description="Partly solved tasks to gather before an update.")


class GroupRejectionParams(Params):
    min_trajs_per_group: int = Field(2, gt=0, description="Smaller groups are dropped.")
