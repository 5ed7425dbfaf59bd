"""Training from Python."""
