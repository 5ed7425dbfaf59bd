"""rllm-example: reward minus the group's median, times a constant."""
