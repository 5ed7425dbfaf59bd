"""vLLM as a rollout engine of rllm."""
