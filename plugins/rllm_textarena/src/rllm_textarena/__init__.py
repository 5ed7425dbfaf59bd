"""rllm-textarena: the single-player games of TextArena as an environment."""

__version__ = "0.1.0"
