"""Runs as JSON: the same answers for the server and for a static page."""
