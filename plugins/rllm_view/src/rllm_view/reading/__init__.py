"""Read a run folder into typed rows. This package writes nothing and needs no running process."""
