"""A real Chromium, driven by playwright. Without either the tests here are skipped, and fail where CI=true."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rllm_view.reading.places import one_run
from rllm_view.serving.app import KEY_VARIABLE

from ..made_runs import Made, make_run

KEY = "key-of-the-tests"
SECONDS_TO_START = 60
MILLISECONDS = 30_000
"""Longest that a page may take to show something: it measures hangs."""


def missing(what: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing")
    pytest.skip(f"needs {what}")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright (pip install playwright)")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        missing("Chromium (apt-get install chromium)")
    with sync_playwright() as playwright:
        # Sandboxes of processes need rights that containers do not have.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def folder_of_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def server(chromium: Any, folder_of_runs: Path) -> Iterator[str]:
    """URL of a server that finds every run of these tests."""
    place = folder_of_runs / "view.json"
    command = [sys.executable, "-m", "rllm_core", "view", str(folder_of_runs), "--announce", str(place)]
    with subprocess.Popen(command, env={**os.environ, KEY_VARIABLE: KEY}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        # Its first line comes once it answers.
        assert process.stdout.readline()
        yield json.loads(place.read_text())["url"]
        process.terminate()


class Visit:
    """A page of a browser with what went wrong in it."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(MILLISECONDS)
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: (self.problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str, heading: str | None = None) -> Any:
        """Go to an address behind the #, and wait for a heading with that text."""
        self.page.goto(f"{self.url}/{address}")
        headings = self.page.locator("main h1")
        (headings if heading is None else headings.filter(has_text=heading)).first.wait_for()
        return self.page

    def text(self) -> str:
        """All that stands on the page."""
        return str(self.page.locator("main").inner_text())


Open = Callable[..., tuple[Visit, str]]


@pytest.fixture
def visit(chromium: Any, server: str) -> Iterator[Visit]:
    """A fresh browser with the key. Whatever it complains of fails the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    found = Visit(context.new_page(), server)
    found.open(f"#key={KEY}", "Runs")
    yield found
    context.close()
    assert found.problems == []
    assert {url for url in found.requests if not url.startswith(server)} == set()


@pytest.fixture
def made(folder_of_runs: Path, request: pytest.FixtureRequest) -> Callable[..., tuple[Path, str]]:
    """Makes a run, and gives its folder and its id."""

    def make(what: Made | None = None, name: str = "run") -> tuple[Path, str]:
        folder = make_run(folder_of_runs / request.node.name.replace("/", "-")[:80] / name, what)
        return folder, one_run(folder).id

    return make
