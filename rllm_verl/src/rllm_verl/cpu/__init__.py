"""verl on a machine without a GPU, as plugins of verl and vLLM. No code outside this package checks the device."""
