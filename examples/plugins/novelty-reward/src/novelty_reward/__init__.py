"""novelty-reward: an example of a package with a plugin for rllm."""
