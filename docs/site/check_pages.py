"""Built pages need no other machine, and their links lead somewhere: ``python check_pages.py DIRECTORY``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

LOADED = {
    "script": "src",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
    "link": "href",
}
"""Elements whose attribute a browser loads with the page."""
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s;]+)""")
FOREIGN = ("http://", "https://", "//")


@dataclass
class Page(HTMLParser):
    """What a page loads, where it leads, and what can be led to in it."""

    loaded: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if address := given.get(LOADED.get(tag, "")):
            self.loaded.append(address)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


def problems_of(directory: Path) -> Iterator[str]:
    """One line for each foreign request and each link that leads nowhere."""
    for file in sorted(directory.rglob("*.html")):
        page, place = _page(file), file.relative_to(directory)
        yield from (f"{place} loads {address}" for address in page.loaded if address.startswith(FOREIGN))
        for address in page.links + page.loaded:
            if not urlsplit(address).scheme and not address.startswith("//") and (why := _wrong(file, address)):
                yield f"{place} leads to {address}, {why}"
    for file in sorted(directory.rglob("*.css")):
        addresses = IN_STYLES.findall(file.read_text(encoding="utf-8"))
        yield from (f"{file.relative_to(directory)} loads {each}" for each in addresses if each.startswith(FOREIGN))


def _wrong(file: Path, address: str) -> str:
    path, anchor = urldefrag(address)
    target = (file.parent / unquote(urlsplit(path).path)).resolve() if urlsplit(path).path else file
    if not target.is_file():
        return "which is not there"
    if anchor and target.suffix == ".html" and unquote(anchor) not in _page(target).anchors:
        return "and there is no such anchor"
    return ""


@cache
def _page(file: Path) -> Page:
    page = Page()
    page.feed(file.read_text(encoding="utf-8"))
    return page


def main(directory: Path) -> int:
    """Print every problem; 1 when there is one."""
    found = list(problems_of(directory))
    lines = found or [f"{len(list(directory.rglob('*.html')))} pages: no foreign request, every link leads somewhere"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
