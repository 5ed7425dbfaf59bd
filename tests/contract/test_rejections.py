"""Every rejection mode of ours is held to the contract of rejection modes."""

from __future__ import annotations

from rllm_plugin_kit import RejectionContract

globals().update(
    RejectionContract.for_each(
        "rllm-core",
        episode={"options": ({}, {"min_partial_solve_tasks": 5})},
        group={"options": ({}, {"min_trajs_per_group": 3})},
        dynamic={"options": ({}, {"train_batch_size": 2}, {"train_batch_size": 3, "max_gen_batches": 2})},
    )
)
