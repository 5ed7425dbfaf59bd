"""A gateway between a policy and agents in anybody's code."""
