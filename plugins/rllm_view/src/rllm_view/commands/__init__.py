"""The commands of ``rllm`` that show runs."""
