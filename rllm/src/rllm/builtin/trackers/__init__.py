"""Trackers for rllm: TensorBoard and Weights & Biases."""
