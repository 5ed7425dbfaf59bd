"""rllm-tools: models that call tools."""

__version__ = "0.1.0"
