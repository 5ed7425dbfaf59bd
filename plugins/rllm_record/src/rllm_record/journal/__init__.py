"""The journal of a run: finished model calls that no checkpoint contains yet. A resumed run reuses their responses."""
