"""rllm-data: tasks from files of rows and from the Hugging Face hub."""
