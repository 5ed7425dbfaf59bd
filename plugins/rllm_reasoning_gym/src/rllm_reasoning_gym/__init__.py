"""rllm-reasoning-gym: the generators of reasoning-gym as an environment."""
