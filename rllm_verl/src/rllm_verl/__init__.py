"""The backend `verl` of rllm: many GPUs through Ray, FSDP or Megatron and vLLM, and the same code on a CPU."""
