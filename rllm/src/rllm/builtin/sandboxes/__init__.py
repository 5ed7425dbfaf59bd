"""Sandboxes: `local` without isolation, `bwrap` with namespaces of Linux, `docker` and `podman` with containers."""
