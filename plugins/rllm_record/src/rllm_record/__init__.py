"""rllm-record: what happened in a run, kept."""

__version__ = "0.1.0"
