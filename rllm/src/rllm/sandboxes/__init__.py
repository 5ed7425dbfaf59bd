"""Sandboxes: `local`, without isolation, and `bwrap`, with the namespaces of Linux."""
