"""Trackers for rllm: TensorBoard, Weights & Biases, and a picture of the run."""
