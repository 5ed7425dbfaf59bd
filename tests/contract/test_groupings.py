"""Every grouping of this repository keeps the contract of groupings."""

from __future__ import annotations

from rllm_plugin_kit import GroupingContract

globals().update(GroupingContract.for_each("rllm-core"))
