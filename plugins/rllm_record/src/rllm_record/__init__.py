"""rllm-record: what happened in a run, kept."""
