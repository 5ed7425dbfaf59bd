"""Distillation: the stage `distill` learns from a teacher's log-probs. Teachers are `server` and `policy`."""
