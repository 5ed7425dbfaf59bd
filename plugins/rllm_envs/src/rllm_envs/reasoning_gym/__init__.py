"""The generators of reasoning-gym as an environment."""
