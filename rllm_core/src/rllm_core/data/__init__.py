"""Episodes, trajectories, tokens: the data of a run."""
