"""Stored episodes under other algorithms: what `rllm rescore` computes. Nothing is played, trained or written."""
