"""What the core itself offers, through the same hooks as everybody else's plugins."""

from __future__ import annotations

from rllm_core.builtin.algorithms import rllm_estimators as rllm_estimators
from rllm_core.builtin.algorithms import rllm_groupings as rllm_groupings
from rllm_core.builtin.algorithms import rllm_losses as rllm_losses
from rllm_core.builtin.algorithms import rllm_rejections as rllm_rejections
from rllm_core.builtin.playing import rllm_agents as rllm_agents
from rllm_core.builtin.playing import rllm_datasets as rllm_datasets
from rllm_core.builtin.playing import rllm_trackers as rllm_trackers
from rllm_core.builtin.playing import rllm_workflows as rllm_workflows
from rllm_core.builtin.stages import rllm_stages as rllm_stages
