"""rllm-data: tasks from files of rows and from the Hugging Face hub."""

__version__ = "0.1.0"
