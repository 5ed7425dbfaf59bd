"""Seeds of the tasks of a split: training counts up from the user's seed, and validation from a distant one."""

from __future__ import annotations

from rllm_core.contracts.environment import Split

SEEDS = 2**30
"""Upper limit of users' seeds, and first seed of validation. So no seed is in both splits."""
LARGEST_SPLIT = 10**6


def list_seeds(split: Split, first: int, train_size: int, val_size: int) -> range:
    """Return the seeds of a split's tasks, in order. `first` is the user's seed."""
    return range(first, first + train_size) if split == "train" else range(first + SEEDS, first + SEEDS + val_size)
