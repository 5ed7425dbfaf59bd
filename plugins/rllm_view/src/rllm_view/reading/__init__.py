"""What a run folder holds, as typed rows. Nothing here writes, and nothing of a running process is needed."""
