"""The command `rllm reward check`: a laboratory that shows which responses a reward accepts."""
