"""Access to the server, and its headers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from expecting import check_values
from starlette.testclient import TestClient

from rllm_view.answers import Answers, Library
from rllm_view.pages import assets
from rllm_view.serving import HEADERS, KEY_HEADER, KEY_VARIABLE, create_app

KEY, URL = "the-key", "http://127.0.0.1:8000"
LARGEST = 150_000
"""Bytes of all assets."""


@pytest.fixture(scope="module")
def browser(finished_run: Path) -> Iterator[TestClient]:
    library = Library([finished_run])
    with TestClient(create_app(Answers(library), KEY), base_url=URL, headers={KEY_HEADER: KEY}) as client:
        yield client
    library.close()


def test_answers_need_the_key_and_pages_do_not(browser: TestClient) -> None:
    for key in ("", "another"):
        assert browser.get("/api/runs", headers={KEY_HEADER: key}).status_code == 401
    without_key = TestClient(browser.app, base_url=browser.base_url)
    assert without_key.get("/api/runs").status_code == 401
    (found,) = browser.get("/api/runs").json()["runs"]
    assert found["name"] == "project/made"

    page = browser.get("/", headers={KEY_HEADER: ""})
    assert page.status_code == 200
    assert "made" not in page.text
    wrong = browser.get(f"/api/runs/{found['id']}/step?step=9")
    assert wrong.status_code == 400
    assert wrong.json() == {"message": "Step 9 is not recorded.", "hint": "Recorded: steps 0 to 2."}


@pytest.mark.parametrize("path", ["/", "/assets/main.js", "/api/runs", "/nothing", "/assets/nothing"])
def test_every_answer_forbids_foreign_scripts(browser: TestClient, path: str) -> None:
    found = browser.get(path)
    assert {name: found.headers[name] for name in HEADERS} == HEADERS
    assert found.status_code == (404 if "nothing" in path else 200)
    assert browser.get(path, headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("path", ["assets/..%2fassets.py", "assets/assets.py", "..%2f..%2fetc/passwd", "api/nothing"])
def test_unknown_asset_is_not_found(browser: TestClient, path: str) -> None:
    assert browser.get(f"/{path}").status_code == 404


def test_assets_are_small_and_safe() -> None:
    assert sum(len(asset.body) for asset in assets().values()) < LARGEST
    # They request nothing from other machines, and make no HTML of text.
    unsafe = ("http:", "https:", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(")
    for name, asset in assets().items():
        text = asset.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert [each for each in unsafe if each in text] == [], name


@pytest.mark.smoke
def test_the_command_serves_until_a_signal(finished_run: Path, tmp_path: Path) -> None:
    place = tmp_path / "view.json"
    command = [sys.executable, "-m", "rllm", "view", str(finished_run), "--announce", str(place)]
    with subprocess.Popen(command, env={**os.environ, KEY_VARIABLE: KEY}, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        url = json.loads(place.read_text())["url"]
        request = urllib.request.Request(f"{url}/api/runs", headers={KEY_HEADER: KEY})
        with urllib.request.urlopen(request) as response:
            names = [each["name"] for each in json.load(response)["runs"]]
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0

    assert said == f"open {url}/#key={KEY}\n"
    assert KEY not in place.read_text()
    assert names == ["project/made"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_is_changed_by_any_method(browser: TestClient, method: str) -> None:
    refused = browser.request(method, "/api/runs")

    assert refused.status_code == 405
    assert refused.headers["allow"] == "GET, HEAD"
    assert refused.json()["message"] == f"{method} is not supported."


def test_failing_index_returns_a_message(finished_run: Path) -> None:
    library = Library([finished_run])
    (opened,) = library.runs()
    opened.index.refresh()
    with TestClient(create_app(Answers(library), KEY), base_url=URL, headers={KEY_HEADER: KEY}) as client:
        opened.close()
        answer = client.get(f"/api/runs/{opened.place.id}/steps")

    assert answer.status_code == 400
    check_values(answer.json()["message"], "index of the record")
