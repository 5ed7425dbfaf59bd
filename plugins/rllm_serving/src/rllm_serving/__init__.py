"""Servers and child processes: what the distributions that have some share."""
