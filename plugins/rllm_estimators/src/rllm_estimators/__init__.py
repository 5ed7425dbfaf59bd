"""rllm-estimators: advantage estimators and policy losses beyond the core's."""

__version__ = "0.1.0"
