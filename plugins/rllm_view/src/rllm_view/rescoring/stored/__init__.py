"""Stored episodes as training data: their tasks, and the stage that brings the episodes."""
