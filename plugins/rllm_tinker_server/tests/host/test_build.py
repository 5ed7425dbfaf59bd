"""A server that is started again in the same directory."""

from __future__ import annotations

from pathlib import Path

from rllm_tinker_server.build import ModelOptions, opened_service


def test_the_tokenizer_of_tiny_is_saved_once_and_as_a_whole(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        with opened_service(ModelOptions(model="tiny", checkpoints=tmp_path, kv_cache_gib=0.01)):
            files = (tmp_path / "tokenizer-of-tiny").iterdir()
            found.append({path.name: path.stat().st_mtime_ns for path in files})
    assert {"tokenizer.json", "tokenizer_config.json"} <= found[0].keys()
    assert found[0] == found[1]
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer-of-tiny"]
