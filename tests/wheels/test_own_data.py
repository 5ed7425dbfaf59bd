"""Your own data with only a backend's requirements, and the pip command if more is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from expecting import check_one_error

from .environments import Environment, same_process

INSTALLED = ("rllm",)
pytestmark = same_process(INSTALLED)
SHORT = ("rllm.trainer.total_batches=2", "rllm.rollout.n=4", "data.max_response_length=2")


@pytest.fixture(scope="module")
def local(with_line: Callable[[tuple[str, ...]], Environment]) -> Environment:
    """Return an environment with rllm and its requirements."""
    return with_line(INSTALLED)


def test_rllm_trains_on_a_file_of_questions(local: Environment, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "1+1", "answer": "2"}\n{"question": "1+2", "answer": "3"}\n')
    words = ("--data", "train.jsonl", "--reward", "exact", *SHORT)

    done = local.run(["rllm", "train", "question", *words], tmp_path)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--data", "train.parquet", "--reward", "exact"], "pip install rllm-data"),
        (["--data", "hf:openai/gsm8k", "--reward", "exact"], "pip install rllm-data"),
        (["--data", "train.jsonl", "--reward", "math"], "pip install 'rllm[math]'"),
    ],
)
def test_what_takes_more_says_the_line_of_pip(words: list[str], line: str, local: Environment, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    (tmp_path / "train.parquet").write_bytes(b"PAR1")

    done = local.run(["rllm", "train", "question", *words], tmp_path)

    assert done.returncode == 2
    assert line in done.stderr
    check_one_error(done.stderr)
