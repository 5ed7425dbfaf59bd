"""From a configuration to a plan: every name looked up, every setting checked."""
