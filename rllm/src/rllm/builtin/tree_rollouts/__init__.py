"""Tree rollouts: rollouts of one task that share their beginnings, and the estimator `tree`."""
