"""Seeds of the tasks of a split: training counts up from the user's seed, and validation from a distant one."""

from __future__ import annotations

from pydantic import Field

from rllm_core.contracts.environment import Split
from rllm_core.contracts.params import Params

SEEDS = 2**30
"""Upper limit of users' seeds, and first seed of validation. So no seed is in both splits."""
LARGEST_SPLIT = 10**6


def list_seeds(split: Split, first: int, train_size: int, val_size: int) -> range:
    """Return the seeds of a split's tasks, in order. `first` is the user's seed."""
    return range(first, first + train_size) if split == "train" else range(first + SEEDS, first + SEEDS + val_size)


class SeedParams(Params):
    """Options of an environment whose tasks are seeds."""

    train_size: int = Field(1000, gt=0, le=LARGEST_SPLIT)
    """Number of training tasks."""
    val_size: int = Field(64, ge=0, le=LARGEST_SPLIT)
    """Number of validation tasks."""
    seed: int = Field(0, ge=0, lt=SEEDS)
    """Seed of the first task. Each further task has the next seed."""
