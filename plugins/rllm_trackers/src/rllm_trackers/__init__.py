"""Trackers for rllm: TensorBoard, Weights & Biases, and a report with a picture of the run."""
