"""Stored episodes under other algorithms: what `rllm rescore` computes. Nothing is generated, trained or written."""
