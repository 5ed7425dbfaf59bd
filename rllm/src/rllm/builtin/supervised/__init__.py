"""Supervised fine-tuning: rows of data as trained tokens, the stages that bring them, and the loss `cross_entropy`."""
