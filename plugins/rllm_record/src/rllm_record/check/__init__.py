"""Whether a record equals its updates: their losses and coefficients, computed again from what it holds."""
