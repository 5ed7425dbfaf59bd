"""Small environments to train on: `guess` and `sum`; and the workflow `solver_judge`."""
