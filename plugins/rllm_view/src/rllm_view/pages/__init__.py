"""Files for the browser: one page, its style, and ES modules without a build step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAGE = "index.html"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Asset:
    """Content and type of one file."""

    body: bytes
    media_type: str


@cache
def assets() -> dict[str, Asset]:
    """Return all files. They are read once, so a name from a request opens no file."""
    files = sorted(path for path in _HERE.iterdir() if path.suffix in TYPES)
    return {path.name: Asset(path.read_bytes(), TYPES[path.suffix]) for path in files}
