"""rllm-record: the record of a run."""
