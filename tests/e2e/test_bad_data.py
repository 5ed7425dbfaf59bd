"""Data, models and rewards that cannot work: the command reports an error early."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expecting import check_one_error, check_printed

Rllm = Callable[..., subprocess.CompletedProcess[str]]
ROWS = [{"question": f"{number}+1", "answer": str(number + 1)} for number in range(4)]
SHORT = "data.max_response_length=1 rllm.trainer.total_batches=2 rllm.rollout.n=4"
DRY = "train question --dry-run --data"


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write(tmp_path / "train.jsonl", ROWS)
    return tmp_path


def read_refusal(rllm: Rllm, words: str) -> str:
    done = rllm(*shlex.split(words))
    assert done.returncode == 2, done.stderr
    check_one_error(done.stderr)
    return done.stderr


@pytest.mark.parametrize(
    ("words", "code", "values"),
    [
        ("--reward exact rllm.env.env_args.prompt=q", "missing-column", ["'q'", "answer, question"]),
        ("--reward exact 'rllm.env.env_args.template=\"{q}?\"'", "bad-prompt", ["'q'", "rllm.env.env_args.template"]),
        ("'rllm.reward=[{name: math, column: gold.x}]'", "missing-column", ["'gold.x'", "answer, question"]),
        ("--reward trl.py:score", "bad-reward-signature", ["trl.py, line 1", "score", "solution"]),
        ("'rllm.reward=[{name: judge, url: http://127.0.0.1:9, model: m, column: g}]'", "missing-column", ["'g'"]),
    ],
)
def test_missing_column_is_found_before_the_run(
    words: str, code: str, values: list[str], directory: Path, rllm_here: Rllm
) -> None:
    (directory / "trl.py").write_text("def score(completions, solution):\n    return [1.0]\n")
    said = read_refusal(rllm_here, f"train question --data train.jsonl {words}")
    check_printed(said, code, *values)
    assert read_refusal(rllm_here, f"{DRY} train.jsonl {words}") == said
    assert not (directory / "runs").exists()


@pytest.mark.parametrize(
    ("row", "code", "values"),
    [
        ({"question": "1+1"}, "missing-column", ["'answer'"]),
        ({"question": "1+1", "answer": " "}, "missing-column", ["' '"]),
        ({"question": "1+1", "answer": "$$"}, "unreadable-answer", ["'$$'"]),
    ],
)
def test_row_without_answer_is_skipped_with_missing_rewards(
    row: dict[str, str], code: str, values: list[str], directory: Path, rllm_here: Rllm
) -> None:
    write(directory / "train.jsonl", [*ROWS, row])
    words = f"{DRY} train.jsonl --reward math"
    check_printed(read_refusal(rllm_here, words), code, *values, "task '5' of train.jsonl")
    assert rllm_here(*shlex.split(words), "rllm.algorithm.on_missing_reward=drop").returncode == 0


@pytest.mark.parametrize("name", ["train.jsonl", "train.csv", "train.json", "train.parquet", "no.parquet"])
def test_dry_run_finds_file_without_rows(name: str, directory: Path, rllm_here: Rllm) -> None:
    (directory / name).write_text("")
    if name == "no.parquet":
        import pandas

        pandas.DataFrame({"question": []}).to_parquet(directory / name)
    check_printed(read_refusal(rllm_here, f"{DRY} {name} --reward exact"), "no-rows", name)


@pytest.mark.smoke
def test_a_parquet_of_structs_and_arrays_trains(directory: Path, rllm_here: Rllm) -> None:
    import pandas

    rows = [
        {
            "prompt": [{"role": "user", "content": row["question"]}],
            "reward_model": {"style": "rule", "ground_truth": np.array([row["answer"], "none"])},
            "extra_info": {
                "vector": np.arange(3, dtype=np.float32),
                "nested": {"matrix": [np.eye(2)[0], np.eye(2)[1]]},
            },
            "count": np.int64(3),
        }
        for row in ROWS
    ]
    pandas.DataFrame(rows).to_parquet(directory / "train.parquet")
    (directory / "rewards.py").write_text(
        "def score(data_source, solution_str, ground_truth, extra_info):\n"
        "    assert extra_info['nested']['matrix'] == [[1.0, 0.0], [0.0, 1.0]] and extra_info['vector'] == [0, 1, 2]\n"
        "    return float(solution_str in ground_truth)\n"
    )
    done = rllm_here(*shlex.split(f"train question --data train.parquet --reward rewards.py:score {SHORT}"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("dataset", "named"), [("", "'2', '3'"), ("hf:", "'1', '2'")])
def test_warning_counts_rows_in_both_splits(dataset: str, named: str, directory: Path, rllm_here: Rllm) -> None:
    write(directory / "val.jsonl", [{"question": "9+9", "answer": "18"}, *ROWS[2:]])
    done = rllm_here(*shlex.split(f"{DRY} {dataset}train.jsonl --val-data {dataset}val.jsonl --reward exact"))
    assert done.returncode == 0, done.stderr
    assert f"share tasks: 2 of the 3 tasks of data.val_dataset, such as {named}." in done.stderr


def test_unreachable_hub_fails_run_but_no_dry_run(directory: Path, rllm_here: Rllm) -> None:
    # The deadline of ten seconds: plugins/rllm_data/tests/test_hub.py.
    words = "train question --data hf:someone/something --reward exact"
    check_printed(read_refusal(rllm_here, words), "service-unreachable", "'someone/something'")
    assert rllm_here(*shlex.split(words), "--dry-run").returncode == 0


@pytest.mark.parametrize("said", ["chat template", "vocabulary"])
def test_model_unfit_for_its_tokenizer_is_rejected(
    said: str, directory: Path, thinking_model: Path, rllm_here: Rllm
) -> None:
    shutil.copytree(thinking_model, directory / "model")
    if said == "chat template":
        file = directory / "model/tokenizer_config.json"
        (directory / "model/chat_template.jinja").unlink(missing_ok=True)
        content = {key: value for key, value in json.loads(file.read_text()).items() if key != "chat_template"}
    else:
        file = directory / "model/tokenizer.json"
        content = json.loads(file.read_text())
        taken = {*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"])}
        content["model"]["vocab"] |= {f"more{n}": max(taken) + n for n in range(1, 3000)}
    file.write_text(json.dumps(content))
    done = rllm_here(*shlex.split(f"train question --data train.jsonl --reward exact --model ./model {SHORT}"))
    assert done.returncode != 0
    assert said in done.stderr
    check_one_error(done.stderr)
