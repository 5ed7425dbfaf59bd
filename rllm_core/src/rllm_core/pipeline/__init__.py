"""One training step as a checked sequence of stages."""
