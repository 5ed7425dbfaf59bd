"""Every agent of this repository keeps the contract of agents."""

from __future__ import annotations

from rllm_plugin_kit import AgentContract

globals().update(AgentContract.for_each("rllm-core", math_agent={"options": ({}, {"system_prompt": "Be brief."})}))
