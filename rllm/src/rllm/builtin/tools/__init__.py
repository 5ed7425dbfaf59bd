"""The workflow `tool_calling`: models that call Python functions."""
