"""verl on a machine without a GPU, for users of the extra `cpu` and of `--profile cpu`: plugins of verl and vLLM.

No code outside this package checks the device.
"""
