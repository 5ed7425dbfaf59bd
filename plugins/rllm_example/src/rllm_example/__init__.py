"""rllm-example: reward minus the group's median, times a constant."""

__version__ = "0.1.0"
