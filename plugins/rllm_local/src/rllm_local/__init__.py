"""rllm-local: train and sample on this machine."""
