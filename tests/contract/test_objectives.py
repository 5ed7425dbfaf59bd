"""Every objective of this repository keeps the contract of objectives."""

from rllm_plugin_kit import ObjectiveContract

globals().update(ObjectiveContract.for_each("rllm-core", "rllm", "rllm-record"))
