"""Which store a command reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from expecting import expect_error

from rllm_core.errors import ConfigError
from rllm_gateway.serving.store_paths import named_store, store_path

RUN = Path("runs", "project", "first")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def configured(text: str) -> None:
    RUN.mkdir(parents=True, exist_ok=True)
    (RUN / "config.yaml").write_text(text)


def test_store_path_unless_named_is_the_run_s() -> None:
    assert store_path(None, RUN) == RUN / "gateway" / "traces.db"
    assert store_path("~/mine.db", RUN) == Path("~/mine.db").expanduser()
    assert store_path(None, None) == Path("~/.rllm/traces.db").expanduser()


@pytest.mark.parametrize(("named", "run"), [(str(RUN), None), (None, "project/first")])
def test_named_store_is_in_the_run_directory(named: str | None, run: str | None) -> None:
    made(store_path(None, None))
    store = made(RUN / "gateway" / "traces.db")
    assert named_store(named, run) == store


def test_named_store_of_a_configured_run_is_that() -> None:
    store = made(Path("mine.db"))
    configured("rllm: {sdk: {store: {path: mine.db}}}")
    assert named_store(str(RUN), None) == store


def test_named_store_of_an_attached_run_is_shared() -> None:
    store = made(store_path(None, None))
    configured("rllm: {sdk: {store: {path: null}, proxy: {mode: external}}}")
    assert named_store(str(RUN), None) == store


def test_named_store_of_an_unknown_run_is_shared() -> None:
    store = made(store_path(None, None))
    assert named_store(None, "deployed") == store == named_store(None, None)


def test_named_store_without_one_names_the_runs() -> None:
    made(RUN / "gateway" / "traces.db")
    with expect_error(ConfigError, "store-not-found", "traces.db", "--store", "runs/project/first"):
        named_store(None, None)
