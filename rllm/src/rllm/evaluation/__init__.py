"""Evaluations: what `rllm eval` runs, measures, saves and compares."""
