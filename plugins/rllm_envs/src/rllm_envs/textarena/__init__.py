"""The single-player games of TextArena as an environment."""
