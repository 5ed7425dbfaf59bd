"""What is typed after ``rllm``."""
