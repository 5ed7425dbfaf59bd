"""What rllm-data offers, and what listing it costs."""

from __future__ import annotations

from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_data.source import BUILDERS, ENDINGS


def test_the_core_reads_json_lines_itself() -> None:
    assert set(BUILDERS) - ENDINGS == {".jsonl"}


def test_the_word_behind_the_name_is_the_path() -> None:
    registry = Registry.load(allow={"rllm-data"})
    assert choose(registry, "dataset", "hf:openai/gsm8k", "data.train_dataset").params.path == "openai/gsm8k"
