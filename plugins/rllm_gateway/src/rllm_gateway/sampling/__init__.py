"""Render prompts, sample responses, and store them."""
