"""What rllm-data offers, and what listing it costs."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_data import plugin
from rllm_data.source import BUILDERS, ENDINGS


def test_the_entry_point_has_the_name_of_the_distribution() -> None:
    (found,) = entry_points(group="rllm.plugins", name="rllm-data")
    assert found.load() is plugin


def test_the_core_reads_json_lines_itself() -> None:
    assert set(BUILDERS) - ENDINGS == {".jsonl"}


def test_the_word_behind_the_name_is_the_path() -> None:
    registry = Registry.load(allow={"rllm-data"})
    assert choose(registry, "dataset", "hf:openai/gsm8k", "data.train_dataset").params.path == "openai/gsm8k"


def test_listing_the_plugin_imports_no_library_of_data() -> None:
    script = "import sys; from rllm_data.plugin import rllm_datasets; list(rllm_datasets()); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200)
    modules = set(done.stdout.split())
    assert "rllm_data.plugin" in modules
    assert not {"datasets", "pyarrow", "huggingface_hub", "numpy", "pandas"} & modules
