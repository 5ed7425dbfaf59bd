"""Features of the program. Each directory is a plugin with its own entry point in `pyproject.toml`.

The rest of the program imports none of them."""
