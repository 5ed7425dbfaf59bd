"""Stored episodes with other algorithms, for `rllm rescore`. Nothing is generated, trained or written."""
