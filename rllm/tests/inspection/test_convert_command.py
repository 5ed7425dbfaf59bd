"""`rllm config convert`: files of rLLM with the backend tinker, and what cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from expecting import check_printed, check_values

from rllm.cli.main import main

Convert = Callable[[str, str], tuple[int, str, str]]
TINKER = """
defaults: [unified, _self_]
rllm:
  backend: tinker
  env: {name: guess}
  algorithm: {adv_estimator: rloo, use_rllm: true}
  trainer: {logger: [console, ui], experiment_name: "${rllm.trainer.project_name}-1"}
model: {name: tiny, lora_rank: 8}
training: {group_size: 4, no_such_key: 1}
tinker_base_url: local
"""


@pytest.fixture
def converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Convert:
    """Convert a file of this name and content: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, text: str) -> tuple[int, str, str]:
        (tmp_path / name).write_text(text)
        return main(["config", "convert", name]), *capsys.readouterr()

    return run


def test_converted_rllm_file_passes_a_dry_run(converted: Convert, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, errors = converted("theirs.yaml", TINKER)
    assert code == 0, errors
    assert yaml.safe_load(out) == {
        "rllm": {
            "algorithm": {"adv_estimator": "rloo"},
            "backend": "tinker",
            "env": {"name": "guess"},
            "rollout": {"n": 4},
            "trainer": {"logger": ["console"], "experiment_name": "${rllm.trainer.project_name}-1"},
        },
        "model": {"name": "tiny", "lora_rank": 8},
        "tinker_base_url": "local",
    }
    listed = errors.partition("Keys without a counterpart")[2]
    for key, why in (
        ("defaults", "It belongs to Hydra"),
        ("rllm.algorithm.use_rllm=true", "always computed"),
        ("training.no_such_key=1", "There is no such key."),
        ("rllm.trainer.logger: ui", "No such tracker"),
    ):
        assert any(line.strip().startswith(key) and why in line for line in listed.splitlines()), key
    Path("ours.yaml").write_text(out)
    assert main(["train", "--config", "ours.yaml", "--dry-run"]) == 0, capsys.readouterr().err


def test_backend_with_most_keys_is_chosen(converted: Convert) -> None:
    assert yaml.safe_load(converted("a.yaml", "validation: {group_size: 2}")[1])["rllm"]["backend"] == "tinker"
    assert yaml.safe_load(converted("a.yaml", "local: {torch_threads: 2}")[1])["rllm"]["backend"] == "local"
    assert yaml.safe_load(converted("a.yaml", "rllm: {rollout: {n: 2}}")[1])["rllm"]["backend"] == "local"


def test_unreadable_words_and_run_time_values_are_listed(converted: Convert) -> None:
    script = "python train.py rllm.rollout.n=$(nproc) rllm.rollout.n_val=2 ~rllm.agent rllm/backend=local\n"
    code, out, errors = converted("run.sh", script)
    assert code == 0
    assert yaml.safe_load(out)["rllm"] == {"backend": "local", "rollout": {"n_val": 2}}
    check_values(errors, "rllm.rollout.n=$(nproc)  ", "`~rllm.agent`")


def test_file_without_a_configuration_is_rejected(converted: Convert) -> None:
    for name, text, error, value in (
        ("run.sh", "echo hello\n", "no-training-command", "run.sh"),
        ("run.yaml", "a: [\n", "yaml-error", "run.yaml"),
        ("run.yaml", "rllm: {backend: nowhere}\n", "unknown-plugin", "nowhere"),
    ):
        code, out, errors = converted(name, text)
        assert (code, out) == (2, "")
        check_printed(errors, error, value)
