"""rllm-reasoning-gym: the generators of reasoning-gym as an environment."""

__version__ = "0.1.0"
