"""YAML files that Hydra composes a configuration from; ``pkg://rllm_core.conf`` to Hydra."""
