"""Commands that look and change nothing: `rllm config` and `rllm plugins info`."""
