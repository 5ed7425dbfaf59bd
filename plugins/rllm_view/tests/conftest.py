"""A run of three steps, read by the queries of the pages, and a real Chromium, driven by playwright.

Without a browser its tests are skipped, and fail where CI=true.
"""

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

from rllm_record.run_files import one_run
from rllm_view.serving import KEY_VARIABLE

from .asking import Asking
from .made_runs import RunShape, make_run
from .visiting import MadeRun, Visit

KEY = "key-of-the-tests"
WINDOW = {"width": 1280, "height": 800}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that the test may change."""
    return make_run(tmp_path / "runs" / "project" / "made")


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that tests only read."""
    return make_run(tmp_path_factory.mktemp("finished") / "runs" / "project" / "made")


@pytest.fixture(scope="session")
def ask(finished_run: Path) -> Iterator[Asking]:
    """The answers about the run that tests only read."""
    asking = Asking(finished_run)
    asking.library.runs()[0].index.refresh()
    yield asking
    asking.library.close()


def missing(what: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing")
    pytest.skip(f"needs {what}")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser. Playwright's event loop runs as long as it is open: tests of other modules need their own."""
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
def directory_of_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def server(directory_of_runs: Path) -> Iterator[str]:
    """URL of a server that finds every run of these tests."""
    place = directory_of_runs / "view.json"
    command = [sys.executable, "-m", "rllm", "view", str(directory_of_runs), "--announce", str(place)]
    with subprocess.Popen(command, env={**os.environ, KEY_VARIABLE: KEY}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        # Its first line comes once it answers.
        assert process.stdout.readline()
        yield json.loads(place.read_text())["url"]
        process.terminate()


@pytest.fixture(scope="module")
def window(chromium: Any, server: str) -> Iterator[Visit]:
    """A browser's page with the key."""
    context = chromium.new_context(viewport=WINDOW)
    found = Visit(context.new_page(), server)
    found.open(f"#key={KEY}", "Runs")
    yield found
    context.close()


@pytest.fixture
def visit(window: Visit) -> Iterator[Visit]:
    """The page, without the state of earlier tests. Any error in it fails the test."""
    window.clear(WINDOW)
    yield window
    assert window.problems == [], window.refused
    pages = (window.url, "about:blank")
    assert {url for url in window.requests if not url.startswith(pages)} == set()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[[Path], Visit]]:
    """Opens a file in a browser that has no network."""
    contexts = []

    def open_file(file: Path) -> Visit:
        context = chromium.new_context(viewport=WINDOW, offline=True)
        contexts.append(context)
        visit = Visit(context.new_page(), file.as_uri())
        visit.page.goto(visit.url)
        visit.page.locator("main h1").wait_for()
        return visit

    yield open_file
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def shared_run(directory_of_runs: Path) -> MadeRun:
    """Make a run, and return its directory and id. Tests that change it give it a name of their own."""

    def make(name: str = "run", what: RunShape | None = None) -> tuple[Path, str]:
        directory = directory_of_runs / "made" / name
        if not directory.exists():
            make_run(directory, what)
        return directory, one_run(directory).id

    return make
