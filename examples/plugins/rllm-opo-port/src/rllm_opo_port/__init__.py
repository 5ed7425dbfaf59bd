"""rllm-opo-port: OPO, ported from verl."""
