"""verl on a machine without a GPU, as plugins of verl and vLLM. Nothing outside this package looks at the device."""
