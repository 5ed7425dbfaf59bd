"""ulimit-sandbox: an example of a package with a plugin for rllm."""
