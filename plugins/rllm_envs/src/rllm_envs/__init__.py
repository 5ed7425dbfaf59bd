"""rllm-envs: environments to train on."""

__version__ = "0.1.0"
