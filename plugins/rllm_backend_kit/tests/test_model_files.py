"""Names of models: a path, a hub id, or an error before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllm_backend_kit.model_files import path_or_hub_id
from rllm_core.errors import ConfigError

KEY = "model.name"


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "gpt2", "a.b-c_d/e.f-g_h"])
def test_name_of_hub_form_is_hub_id(name: str) -> None:
    assert path_or_hub_id(KEY, name) is None


@pytest.mark.parametrize("name", ["./model", "/models/it", "~/model", "a/b/c"])
def test_name_that_begins_like_path_is_path(name: str) -> None:
    assert path_or_hub_id(KEY, name) == Path(name).expanduser()


def test_existing_directory_is_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert path_or_hub_id(KEY, "gpt2") == Path("gpt2")


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "é🙂",
        "-a",
        "a/",
        "/" + "a" * 300,
        "a" * 97,
        "a" * 5000,
        "~no-such-user-here/model",
        "a\0b",
        "a\nb",
    ],
)
def test_name_of_neither_form_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=KEY):
        path_or_hub_id(KEY, name)
