"""Running somebody's agent: a process per attempt, with its session in the environment."""
