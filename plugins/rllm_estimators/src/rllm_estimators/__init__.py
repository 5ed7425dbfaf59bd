"""rllm-estimators: advantage estimators and policy losses beyond the core's."""
