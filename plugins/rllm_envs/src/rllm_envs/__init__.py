"""Environments of other projects, each behind an extra."""
