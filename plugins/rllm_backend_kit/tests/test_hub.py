"""A hub that does not answer is given up in seconds. transformers handles the files of a hub."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError

from rllm_backend_kit import model_files


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(model_files, "_unanswered", {})


@pytest.fixture
def asked_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that a hub without a network is asked for."""
    names: list[str] = []

    def fail(_: Any, name: str, timeout: float) -> None:
        assert timeout <= model_files.HUB_DEADLINE
        names.append(name)
        raise ConnectionError

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    return names


def test_without_network_cache_is_used_after_one_request(asked_names: list[str]) -> None:
    assert model_files.is_only_cached("some-org/some-model")
    assert model_files.is_only_cached("some-org/some-model")
    assert asked_names == ["some-org/some-model"]


def test_a_network_that_comes_back_is_found(asked_names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_files.is_only_cached("some-org/some-model")
    monkeypatch.setattr(model_files, "HUB_RETRY_AFTER", 0.0)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: None)
    assert not model_files.is_only_cached("some-org/some-model")


def test_directory_and_offline_mode_send_no_request(
    asked_names: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not model_files.is_only_cached(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert model_files.is_only_cached("some-org/some-model")
    assert not asked_names


def test_invalid_name_is_left_to_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise HFValidationError

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    assert not model_files.is_only_cached("no/such/name")


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that takes the question and says nothing until the test is over."""
    over = threading.Event()
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: over.wait())
    yield
    over.set()


@pytest.mark.usefixtures("silent")
def test_hanging_hub_times_out_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_files.HUB_DEADLINE < 10
    monkeypatch.setattr(model_files, "HUB_DEADLINE", 0.1)
    assert model_files.is_only_cached("some-org/some-model")
