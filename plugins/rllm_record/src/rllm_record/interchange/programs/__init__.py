"""Formats of other programs. `formats` finds each module in this directory by its constant ``FORMAT``."""
