"""`rllm doctor`: rules that find faults of a run in its metrics and rollouts."""
