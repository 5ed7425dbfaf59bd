"""Your data: the environment `question`, the dataset `jsonl`, and rewards."""
