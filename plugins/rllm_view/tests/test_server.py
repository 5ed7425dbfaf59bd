"""Access to the server, and its headers."""

from __future__ import annotations

import fcntl
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
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from rllm_record.pending import PendingFile, PendingRow, write_pending
from rllm_record.run_files import LOCK, STATUS, read_metrics
from rllm_serving.prometheus import gauge_name
from rllm_view.answers import Answers, Library
from rllm_view.pages import assets
from rllm_view.reading.run import last_values
from rllm_view.serving import HEADERS, KEY_HEADER, KEY_VARIABLE, create_app

from .made_runs import make_run

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


def test_prometheus_reads_metrics_of_running_runs(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "project" / "made")
    write_pending(run, PendingFile(total=3, rows=[pending_row("model"), pending_row("tool"), pending_row("model")]))
    library = Library([run])
    client = TestClient(create_app(Answers(library), KEY), base_url=URL, headers={"Authorization": f"Bearer {KEY}"})

    assert client.get("/metrics", headers={"Authorization": KEY}).status_code == 401
    with (run / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (run / STATUS).write_text(json.dumps({"status": "running", "started": "2026-11-29T09:41:33+00:00"}))
        answer = client.get("/metrics")
        read = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert answer.headers["content-type"] == CONTENT_TYPE_LATEST
    assert all(family.documentation and family.type == "gauge" for family in read.values())
    values = {
        (sample.name, sample.labels.get("waits_for", "")): sample.value
        for family in read.values()
        for sample in family.samples
        if sample.labels["run"] == "project/made"
    }
    assert values["rllm_pending_rollouts", ""] == 3
    assert values["rllm_pending_rollouts_by_part", "model"] == 2
    expected = {gauge_name(name): value for name, value in last_values(read_metrics(run)).items()}
    assert {name: value for (name, _), value in values.items() if name in expected} == expected
    # Without its process, the run has ended.
    assert not any(family.samples for family in text_string_to_metric_families(client.get("/metrics").text))
    library.close()


def pending_row(waits_for: str) -> PendingRow:
    return PendingRow(rollout="task-3:5", turn=2, waits_for=waits_for, name="", since=1.0, is_slow=False)
