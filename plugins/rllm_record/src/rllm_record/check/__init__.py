"""Check that a record equals the run's updates. Losses and coefficients are computed again from the record."""
