"""YAML files that Hydra composes a configuration from; ``pkg://rllm.conf`` to Hydra."""
