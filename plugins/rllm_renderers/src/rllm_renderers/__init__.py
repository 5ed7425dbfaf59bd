"""rllm-renderers: renderers of known model families."""

__version__ = "0.1.0"
