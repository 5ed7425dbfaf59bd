"""rllm-renderers: renderers of known model families."""
