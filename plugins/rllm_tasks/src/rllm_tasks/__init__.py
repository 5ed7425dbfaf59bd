"""rllm-tasks: train on questions of one's own."""
