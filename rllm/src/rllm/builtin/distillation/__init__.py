"""Distillation: stages that learn from a teacher, and the teachers `server`, `policy` and `by_source`."""
