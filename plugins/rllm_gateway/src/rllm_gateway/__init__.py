"""A gateway between a policy and a user's own agents."""
