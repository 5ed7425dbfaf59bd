"""rllm-envs: environments to train on."""
