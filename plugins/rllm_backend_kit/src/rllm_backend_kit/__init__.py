"""Shared code for backends: the parts of an update in torch, and the run's renderer."""
