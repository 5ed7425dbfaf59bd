"""Files for `rllm plugins new`: a package with one plugin that installs, passes its tests and trains by name."""
