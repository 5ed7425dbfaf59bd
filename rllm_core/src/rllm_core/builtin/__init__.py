"""The core's own plugins, registered through the same hooks as other plugins."""

from __future__ import annotations

from rllm_core.builtin.algorithms import (
    rllm_estimators as rllm_estimators,
    rllm_groupings as rllm_groupings,
    rllm_losses as rllm_losses,
    rllm_rejections as rllm_rejections,
)
from rllm_core.builtin.rollouts import (
    rllm_agents as rllm_agents,
    rllm_renderers as rllm_renderers,
    rllm_workflows as rllm_workflows,
)
from rllm_core.builtin.stages import (
    rllm_objectives as rllm_objectives,
    rllm_stages as rllm_stages,
)
