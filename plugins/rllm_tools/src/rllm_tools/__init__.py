"""rllm-tools: models that call tools."""
