"""Addresses of pages in links."""

from __future__ import annotations

from urllib.parse import quote


def of_run(run: str, *parts: object) -> str:
    return "#/" + "/".join(quote(str(part), safe="") for part in ("run", run, *parts))


def of_episode(run: str, step: int, uid: str, token: int | None = None) -> str:
    return of_run(run, "step", step, "episode", uid) + ("" if token is None else f"#t{token}")
