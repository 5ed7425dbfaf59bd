"""Packages with plugins: find, install and check them."""
