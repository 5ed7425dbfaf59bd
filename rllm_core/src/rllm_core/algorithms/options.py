"""Options of the core's own algorithms. Apart from the algorithms so that listing plugins imports no numpy.

A field with the name of a config key (`eps_clip` of ``rllm.algorithm.eps_clip``) takes that key's value.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rllm_core.contracts.plugin import Params, ParamsT
from rllm_core.schema.section import Means, marked


class GrpoParams(Params):
    dialect: Literal["rllm", "verl", "trl"] = Field(
        "rllm",
        description="rllm: std with ddof 0, + 1e-6; verl: ddof 1, + 1e-6; trl: ddof 1, + 1e-4. A group of one keeps "
        "its reward (rllm, verl) or gets 0 (trl).",
    )
    norm_adv_by_std_in_grpo: bool = Field(True, description="Divide by the group's standard deviation.")


class RlooParams(Params):
    dialect: Literal["rllm", "verl", "trl"] = Field(
        "rllm", description="A group of one: rllm and verl its reward, trl 0. Otherwise they agree."
    )


class ReinforcePlusPlusBaselineParams(Params):
    dialect: Literal["rllm", "verl"] = Field(
        "rllm",
        description="rllm divides by the std (ddof 0) over trajectories, a group of one gets 0; verl whitens over "
        "sampled tokens (ddof 1), a group of one goes in with its reward.",
    )


class ClipParams(Params):
    """For losses that clip at ``1 - eps_clip`` and ``1 + eps_clip_high``, as ``rllm.algorithm`` spells it."""

    eps_clip: float = Field(0.2, gt=0, description="Importance ratios below 1 - eps_clip are clipped.")
    eps_clip_high: float | None = Field(None, gt=0, description="Upper bound 1 + eps_clip_high; null means eps_clip.")

    @property
    def eps_low_high(self) -> tuple[float, float]:
        return self.eps_clip, self.eps_clip if self.eps_clip_high is None else self.eps_clip_high


class PpoParams(ClipParams):
    clip_ratio_c: float | None = Field(
        None,
        gt=1,
        description="Dual clip: with a negative advantage a token's loss is at most clip_ratio_c times the "
        "advantage's size; null means unbounded. Others often use 3.",
    )


class EpisodeRejectionParams(Params):
    min_partial_solve_tasks: int = Field(1, gt=0, description="Partly solved tasks to gather before an update.")


class GroupRejectionParams(Params):
    min_trajs_per_group: int = Field(2, gt=0, description="Smaller groups are dropped.")


class DynamicRejectionParams(GroupRejectionParams):
    max_gen_batches: int = Field(10, gt=0, description="Batches of tasks played in one step at most.")
    train_batch_size: Annotated[int, Means.TASKS_PER_BATCH] = Field(
        64, gt=0, description="Tasks whose groups fill a batch."
    )


def clamp_tasks_per_batch(params: ParamsT, tasks: int) -> ParamsT:
    """A rejection mode's options; one that fills batches is told of no more tasks than there are."""
    sizes = {name: tasks for name in marked(type(params), Means.TASKS_PER_BATCH) if getattr(params, name) > tasks}
    return params.model_copy(update=sizes) if sizes else params
