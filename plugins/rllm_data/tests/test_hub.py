"""The plugin, and data sets of the hub without a network."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import datasets
import huggingface_hub
import pytest
from expecting import check_printed

from rllm_core.errors import ConfigError
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_data import reading
from rllm_data.source import BUILDERS, ENDINGS

from .conftest import Read


def read_message(read: Read, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read("openai/gsm8k", **options)
    text = caught.value.printed()
    assert len(text.splitlines()) <= 2
    return text


def test_a_hub_out_of_reach_is_said(read: Read) -> None:
    check_printed(read_message(read), "service-unreachable", "'openai/gsm8k'", "HF_HUB_OFFLINE=1")


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that takes the question and says nothing until the test is over."""
    over = threading.Event()
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: over.wait())
    yield
    over.set()


@pytest.mark.usefixtures("hanging")
def test_hanging_hub_is_an_error_at_the_deadline(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reading.DEADLINE < 10
    monkeypatch.setattr(reading, "DEADLINE", 0.1)
    check_printed(read_message(read), "service-unreachable", "'openai/gsm8k'", "0 s")


def test_offline_the_hub_is_not_asked(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: pytest.fail("the hub is asked"))
    check_printed(read_message(read), "dataset-unreadable", "'openai/gsm8k'", "HF_HUB_OFFLINE", "`config`")


def test_configuration_and_split_of_a_hub_data_set(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def load(name: str, config: str | None) -> datasets.DatasetDict:
        asked.append((name, config))
        return datasets.DatasetDict({"test": datasets.Dataset.from_list([{"question": "2 + 2?", "answer": "4"}])})

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *_, **__: None)
    monkeypatch.setattr(datasets, "load_dataset", load)
    (task,) = read("openai/gsm8k", config="main", split="test")
    assert asked == [("openai/gsm8k", "main")]
    assert (task.id, task.data_source, task.data["prompt"]) == ("0", "openai/gsm8k", "2 + 2?")


def test_the_core_reads_json_lines_itself() -> None:
    assert set(BUILDERS) - ENDINGS == {".jsonl"}


def test_the_word_behind_the_name_is_the_path() -> None:
    registry = Registry.load(allow={"rllm-data"})
    assert choose(registry, "dataset", "hf:openai/gsm8k", "data.train_dataset").params.path == "openai/gsm8k"
