"""Options of the core's own algorithms. They are in a separate file, so that listing plugins does not import numpy.

A field with the name of a config key takes that key's value. For example, `eps_clip` takes ``rllm.algorithm.eps_clip``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rllm_core.contracts.params import Params
from rllm_core.contracts.plugin import ParamsT
from rllm_core.schema.section import OptionRole, find_options


class GrpoParams(Params):
    dialect: Literal["rllm", "verl", "trl"] = "rllm"
    """Library to reproduce. rllm: std with ddof 0, + 1e-6. verl: ddof 1, + 1e-6. trl: ddof 1, + 1e-4. A group with one
    trajectory keeps its reward (rllm, verl) or gets 0 (trl)."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the group's standard deviation."""


class RlooParams(Params):
    dialect: Literal["rllm", "verl", "trl"] = "rllm"
    """Library to reproduce. They differ for a group with one trajectory: rllm and verl give its reward, trl gives 0."""


class ReinforcePlusPlusBaselineParams(Params):
    dialect: Literal["rllm", "verl"] = "rllm"
    """Library to reproduce. rllm divides by the std (ddof 0) over trajectories, and a group with one trajectory gets 0.
    verl whitens over sampled tokens (ddof 1), and such a group enters with its reward."""


class ClipParams(Params):
    """Options of losses that clip at ``1 - eps_clip`` and ``1 + eps_clip_high``, as in ``rllm.algorithm``."""

    eps_clip: float = Field(0.2, gt=0)
    """Importance ratios below 1 - eps_clip are clipped."""
    eps_clip_high: float | None = Field(None, gt=0)
    """Upper bound 1 + eps_clip_high. null means eps_clip."""

    @property
    def eps_low_high(self) -> tuple[float, float]:
        return self.eps_clip, self.eps_clip if self.eps_clip_high is None else self.eps_clip_high


class PpoParams(ClipParams):
    clip_ratio_c: float | None = Field(None, gt=1)
    """Dual clip: if the advantage is negative, a token's loss is at most clip_ratio_c times the advantage's size. null
    means no bound. 3 is a common value."""


class EpisodeRejectionParams(Params):
    min_partial_solve_tasks: int = Field(1, gt=0)
    """Number of partly solved tasks to collect before an update."""


class GroupRejectionParams(Params):
    min_trajs_per_group: int = Field(2, gt=0)
    """Smaller groups are dropped."""


class DynamicRejectionParams(GroupRejectionParams):
    max_gen_batches: int = Field(10, gt=0)
    """Maximum number of rollout batches in one step."""
    train_batch_size: Annotated[int, OptionRole.TASKS_PER_BATCH] = Field(64, gt=0)
    """Number of tasks in a full batch."""


def clamp_tasks_per_batch(params: ParamsT, tasks: int) -> ParamsT:
    """Return a rejection mode's options. A batch size in them is reduced to the number of tasks in the run."""
    sizes = {
        name: tasks for name in find_options(type(params), OptionRole.TASKS_PER_BATCH) if getattr(params, name) > tasks
    }
    return params.model_copy(update=sizes) if sizes else params
