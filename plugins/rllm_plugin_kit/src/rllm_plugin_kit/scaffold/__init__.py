"""What `rllm plugins new` writes: a package with one plugin that installs, passes its tests and trains by name."""
