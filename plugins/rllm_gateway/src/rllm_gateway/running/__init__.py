"""Run a user's agent: one process per rollout, with the session in environment variables."""
