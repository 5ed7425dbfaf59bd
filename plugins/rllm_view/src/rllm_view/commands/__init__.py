"""Commands of ``rllm``."""
