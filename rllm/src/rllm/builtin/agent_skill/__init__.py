"""Instructions for coding agents: the command `rllm skill`."""
