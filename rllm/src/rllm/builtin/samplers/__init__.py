"""Samplers: which tasks the next rollout batch contains."""
