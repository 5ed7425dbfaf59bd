"""Visit: a page of a browser, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

MILLISECONDS = 30_000
"""Maximum time that a page may take to show something."""
MadeRun = Callable[..., tuple[Path, str]]
"""Makes a run of a name and `RunShape`, or finds the one of this name, and returns its directory and id."""


class Visit:
    """One page of a browser."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.refused: list[str] = []
        page.set_default_timeout(MILLISECONDS)
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: (self.problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("response", self._look_at)
        page.on("request", lambda request: self.requests.append(request.url))

    def clear(self, window: dict[str, int]) -> None:
        """Leave the page, and forget its problems and settings."""
        self.page.goto("about:blank")
        self.page.unroute_all()
        self.page.set_viewport_size(window)
        self.page.emulate_media(color_scheme="light")
        for events in (self.problems, self.requests, self.refused):
            events.clear()

    def _look_at(self, response: Any) -> None:
        if response.status >= 400:
            self.refused.append(f"{response.status} {response.url}")

    def open(self, address: str, heading: str | None = None) -> Any:
        """Go to an address behind the #, and wait for a heading with that text."""
        self.page.goto(f"{self.url}/{address}")
        headings = self.page.locator("main h1")
        (headings if heading is None else headings.filter(has_text=heading)).first.wait_for()
        return self.page

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def wait_for(self, heading: str) -> None:
        self.page.locator("main h1").filter(has_text=heading).wait_for()

    def text(self) -> str:
        """Return the text of the page."""
        return str(self.page.locator("main").inner_text())
