"""Environments of NeMo-Gym, over the HTTP protocol of its resources servers."""
