"""Every key of the core's configuration, with its type, default and description."""
