"""rllm-tasks: train on questions of one's own."""

__version__ = "0.1.0"
