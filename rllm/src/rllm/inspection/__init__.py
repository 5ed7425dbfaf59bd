"""Commands that look and change nothing: `rllm config`, `rllm plugins info` and `rllm plugins doctor`."""
