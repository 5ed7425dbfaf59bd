"""From tasks to episodes: messages to tokens, workflows, and the runner that plays many at once."""
