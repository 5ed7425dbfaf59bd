"""`rllm config validate FILE` finds what a run would find, says it in the same words, and trains nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from expecting import check_printed, check_values

from rllm.cli.main import main


class RejectionResult(NamedTuple):
    code: int
    out: str
    err: str


Judge = Callable[..., RejectionResult]


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Judge:
    """Run `rllm WORDS` in this process, in a directory with the file `my.yaml`."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("RLLM_BLOCK_PLUGINS", ""), ("RLLM_DEBUG", "0"), ("COLUMNS", "200")):
        monkeypatch.setenv(name, value)

    def run(*words: str) -> RejectionResult:
        return RejectionResult(main(words), *capsys.readouterr())

    return run


@pytest.mark.parametrize(
    ("text", "code", "value"),
    [
        ("rllm: [", "yaml-error", "my.yaml, line 2, column 1: "),
        ("rllm: {rollout: {m: 3, k: 4}}", "unknown-key", "2 problems in the configuration:"),
        ("rllm: {trainer: {experiment_name: a/b}}", "wrong-value", "expected text that matches the pattern"),
        ("rllm: {plugins: {allow: [rllm-view]}}", "blocked-plugin", "rllm-local"),
        ("model: {name: ./nowhere}", "model-not-loadable", "model.name='./nowhere'"),
        ("rllm: {async_training: {enable: true, staleness_threshold: 0.5}}", "fractional-staleness", "Set it to 1"),
        ("data: {train_dataset: {name: jsonl, path: absent.jsonl}}", "file-unreadable", "absent.jsonl"),
        ("data: {val_dataset: {name: jsonl, path: my.yaml}}", "not-json", "my.yaml, line 1"),
    ],
)
def test_mistake_in_file_gives_the_error_of_runs(judge: Judge, text: str, code: str, value: str) -> None:
    Path("my.yaml").write_text(text)
    result = judge("config", "validate", "my.yaml", "sum")
    check_printed(result.err, code, value)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error[")
    assert "\n\n" not in result.err.strip()
    assert judge("train", "sum", "--config", "my.yaml") == result
    assert [path.name for path in Path().iterdir()] == ["my.yaml"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["absent.yaml"], "file-not-found"),
        (["."], "not-a-file"),
        (["my.yaml"], "no-environment"),
        (["my.yaml", "sum", "--estimator", "grop"], "unknown-plugin"),
        (["my.yaml", "sum", "rllm.rollout.n"], "bad-override"),
    ],
)
def test_mistake_in_overrides_gives_the_error_of_runs(judge: Judge, words: list[str], code: str) -> None:
    Path("my.yaml").write_text("rllm: {rollout: {n: 4}}")
    result = judge("config", "validate", *words)
    assert (result.code, result.out) == (2, "")
    check_printed(result.err, code)
    assert judge("train", "--config", *words) == result


def test_a_file_that_is_no_text_is_named(judge: Judge) -> None:
    Path("my.yaml").write_bytes(b"rllm: \xff")
    check_printed(judge("config", "validate", "my.yaml", "sum").err, "not-utf8", "`my.yaml`", "byte 6", "UTF-8.\n")


def test_unloadable_plugin_gives_the_error_of_runs(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    Path("my.yaml").write_text("rllm: {trainer: {logger: [wandb]}}")
    result = judge("config", "validate", "my.yaml", "sum")
    assert result.code == 2
    assert "wandb" in result.err
    trained = judge("train", "sum", "--config", "my.yaml")
    assert (trained.code, trained.err) == (2, result.err)


@pytest.mark.smoke
def test_a_good_file_is_valid_and_trains(judge: Judge) -> None:
    tasks = "{train_dataset: {name: jsonl, path: tasks.jsonl}, val_dataset: {name: jsonl, path: others.jsonl}}"
    options = "{agent: {agent_args: {system_prompt: guess}}, stepwise_advantage: {enable: true}}"
    Path("my.yaml").write_text(f"data: {tasks}\nrllm: {options}\n")
    Path("tasks.jsonl").write_text('{"a": 1, "b": 2}\n')
    Path("others.jsonl").write_text('{"a": 1, "b": 3}\n')
    quick = ("sum", "rllm.trainer.total_batches=1", "rllm.rollout.n=2", "rllm.trainer.val_before_train=false")
    result = judge("config", "validate", "my.yaml", *quick)
    assert result.code == 0, result.err
    assert not Path("runs").exists()
    trained = judge("train", "--config", "my.yaml", *quick)
    assert trained.code == 0
    assert trained.err.startswith(result.err), "the same warnings"


def test_a_valid_file_says_what_would_run(judge: Judge) -> None:
    Path("my.yaml").write_text("rllm: {algorithm: {adv_estimator: rloo}, env: {env_args: {largest: 2}}}")
    (line,) = judge("config", "validate", "my.yaml", "sum").out.splitlines()
    check_values(line, "my.yaml", "backend local", "workflow single_turn_workflow", "estimator rloo")
    check_values(line, "loss importance_sampling", "9 training", "9 validation tasks")
