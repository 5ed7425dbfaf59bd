"""Tasks of inspect-ai, whose model calls go through sessions of the gateway."""
