"""The observer `pending_rollouts`: which rollouts of a run wait, and for which part."""
