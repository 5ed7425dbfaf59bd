"""rllm-textarena: the single-player games of TextArena as an environment."""
