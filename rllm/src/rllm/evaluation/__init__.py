"""Evaluations: what `rllm eval` plays, measures, saves and compares."""
