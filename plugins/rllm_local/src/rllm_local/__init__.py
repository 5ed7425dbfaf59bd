"""rllm-local: train and sample on this machine."""

__version__ = "0.1.0"
