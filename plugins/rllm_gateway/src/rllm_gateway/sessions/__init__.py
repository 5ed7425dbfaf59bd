"""Open sessions, and the link over which a trainer opens them."""
