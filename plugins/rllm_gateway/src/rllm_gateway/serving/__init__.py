"""The gateway's servers and processes."""
