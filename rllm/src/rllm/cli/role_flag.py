"""The flag --role-estimator, which several commands have."""

from __future__ import annotations

import click

ROLE_FLAG = "role-estimator"


def require_roles(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """A callback of click's: each word is ROLE=NAME, and no role is given twice."""
    roles = [word.partition("=")[0] for word in words]
    for role, word in zip(roles, words, strict=True):
        if not role or "=" not in word or word.endswith("="):
            raise click.UsageError(f"--{ROLE_FLAG} is given {word!r}; it takes ROLE=NAME, such as judge=reinforce.")
        if roles.count(role) > 1:
            raise click.UsageError(f"--{ROLE_FLAG}: role {role!r} is given twice.")
    return words
