"""Code for servers and child processes that several rllm packages share."""
