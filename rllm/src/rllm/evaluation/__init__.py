"""Evaluations: `rllm eval` runs, measures, saves and compares them."""
