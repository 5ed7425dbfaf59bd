"""Read a run directory into typed rows. This package writes nothing and needs no running process."""
