"""Runs of each framework, from their files to the findings that the command prints."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pandas as pd
import pytest
from peers import directory_of

from rllm.builtin.doctor import other_frameworks
from rllm.builtin.doctor.catalog import RULES
from rllm.builtin.doctor.reading import read_run
from rllm.builtin.doctor.rule import false_alarms
from rllm.builtin.doctor.run_data import Column
from rllm.cli.main import main

STEPS = range(1, 13)
PRIME_RL = Path(__file__).with_name("prime_rl_run")
"""A run directory of prime-rl 0.8 (commit 559b44772), written by its file monitor, its methods `finalize_train_batch`
and `finalize_eval_batch`, the statements of its RL trainer that log a step, and verifiers 0.4.0. The rollouts are
made up: half of them are cut off, and the loss of step 7 is NaN. Distributions, times and the rollouts of other steps
were removed from the files."""


def write_lines(file: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write a JSON Lines file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_trl(directory: Path, reward: float = 0.0) -> None:
    """Write the files of a run of TRL whose rewards are all equal, with an evaluation and the summary of its end."""
    history = [{"step": step, "reward": reward, "frac_reward_zero_std": 1.0, "grad_norm": 0.0} for step in STEPS]
    history += [{"step": 12, "eval_reward": reward}, {"step": 12, "train_runtime": 3.0, "train_loss": 0.0}]
    (directory / "checkpoint-12").mkdir(parents=True)
    (directory / "checkpoint-12/trainer_state.json").write_text(json.dumps({"log_history": history}))
    (directory / "completions").mkdir()
    for step in STEPS:
        rows = {"step": [step] * 4, "prompt": list("aabb"), "completion": list("1234"), "right": [reward] * 4}
        frame = pd.DataFrame(rows | {"advantage": [0.0] * 4})
        frame.to_parquet(directory / "completions" / f"completions_{step:05d}.parquet")


def write_verl(directory: Path) -> None:
    """Write the log of a run of verl with too large updates, and its rollouts, which are all right."""
    write_lines(
        directory / "log.jsonl",
        [{"step": step, "data": {"actor/ppo_kl": 3.0, "critic/score/mean": 1.0, "note": "text"}} for step in STEPS],
    )
    for step in STEPS:
        rows = [{"step": step, "input": "a", "output": str(i), "score": 1.0, "gts": "1"} for i in range(4)]
        write_lines(directory / "rollouts" / f"{step}.jsonl", rows)


def findings_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Return the findings of the command by rule."""
    code = main(["doctor", *words, "--json"])
    found = {each["rule"]: each for each in json.loads(capsys.readouterr().out)["findings"]}
    assert code == int(bool(found))
    return found


def test_trl_output_directory_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trl(tmp_path)

    assert findings_of(capsys, str(tmp_path))["tasks_too_hard"]["tasks"] == ["a", "b"]


def test_trl_state_file_has_metrics_only(tmp_path: Path) -> None:
    write_trl(tmp_path)
    run = read_run(tmp_path / "checkpoint-12/trainer_state.json")

    assert run.series(Column.REWARD).steps.tolist() == list(STEPS)
    assert run.series(Column.VALIDATION).steps.tolist() == [12]
    assert run.rollouts is None


def test_trl_rewards_have_fitted_weights(tmp_path: Path) -> None:
    history = [
        {"step": step, "reward": 0.5 + 0.1 * step, "rewards/right/mean": 0.5, "rewards/form/mean": step}
        for step in STEPS
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    row = {"step": [1], "prompt": ["a"], "completion": ["1"], "right": [1.0], "form": [2.0], "seconds": [7.0]}
    pd.DataFrame(row | {"advantage": [0.0]}).to_parquet(tmp_path / "completions_00001.parquet")

    assert read_run(tmp_path).all_rollouts.reward == pytest.approx([1.2])


def test_verl_log_and_rollouts_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_verl(tmp_path)
    found = findings_of(capsys, str(tmp_path / "log.jsonl"), "--rollouts", str(tmp_path / "rollouts"))

    assert list(found) == ["update_too_large", "tasks_too_easy"]
    assert found["update_too_large"]["change"].startswith("actor_rollout_ref.actor.optim.lr")


def test_log_without_advantages_has_dead_groups(tmp_path: Path) -> None:
    write_verl(tmp_path)
    run = read_run(tmp_path / "log.jsonl", tmp_path / "rollouts")

    assert run.series(Column.ZERO_ADVANTAGE).values.tolist() == [1.0] * len(STEPS)


def test_length_of_text_replaces_tokens(tmp_path: Path) -> None:
    write_trl(tmp_path)

    assert read_run(tmp_path).all_rollouts.length.tolist() == [1.0] * 4 * len(STEPS)


def test_prime_rl_run_has_metrics_of_both_processes() -> None:
    run = read_run(PRIME_RL)

    assert run.series(Column.REWARD).values[:2].tolist() == [0.25, 0.5]
    assert run.series(Column.VALIDATION).steps.tolist() == [4, 8]
    assert run.series(Column.STEP_SECONDS).values.tolist() == [2.0] * 8
    assert run.series(Column.TOKENS_PER_SECOND).steps.tolist() == list(range(2, 9))
    assert list(run.stages) == ["wait_for_batch", "load_data", "broadcast_weights", "save_ckpt", "forward_backward"]


def test_prime_rl_rollouts_have_weighted_rewards() -> None:
    rows = read_run(PRIME_RL).all_rollouts

    assert rows.text.tolist() == ["2 and", "1", "1 and", "2"]
    assert rows.truncated.tolist() == [1, 0, 1, 0]
    assert rows.reward.tolist() == [0, 0.5, 0, 1.5]
    assert rows.components["short"].tolist() == [0, 1, 0, 1]


def test_null_score_of_prime_rl_is_nan(tmp_path: Path) -> None:
    copytree(PRIME_RL, tmp_path, dirs_exist_ok=True)
    traces = tmp_path / "rollouts/step_8/train/all/traces.jsonl"
    traces.write_text(re.sub(r'"score": ?1\.0', '"score": null', traces.read_text()))

    assert np.isnan(read_run(tmp_path).all_rollouts.reward).tolist() == [False, True, False, True]


def test_prime_rl_findings_have_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings_of(capsys, str(PRIME_RL))

    assert list(found) == ["not_finite", "truncation"]
    assert found["not_finite"]["first_step"] == 7
    assert found["truncation"]["change"].startswith("orchestrator.train.sampling.max_completion_tokens")


def test_judge_of_prime_rl_is_no_reward(tmp_path: Path) -> None:
    names = {f"train/agg/all/{agent}/{end}/mean" for agent in ("solver", "judge") for end in ("reward", "is_trainable")}
    line = {name: float("solver" in name) for name in names}
    write_lines(tmp_path / "metrics.jsonl", [line | {"step": step} for step in STEPS])

    assert set(read_run(tmp_path).series(Column.REWARD).values) == {1.0}


@pytest.mark.parametrize("logged", [float("nan"), None], ids=["NaN", "null of verl's logger"])
def test_infinite_gradient_is_found(logged: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"step": step, "data": {"actor/grad_norm": logged if step == 7 else 1.0}} for step in STEPS]
    write_lines(tmp_path / "log.jsonl", lines)

    assert findings_of(capsys, str(tmp_path / "log.jsonl"))["not_finite"]["first_step"] == 7


def test_path_without_run_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "directory.jsonl").mkdir()
    write_lines(tmp_path / "metrics.jsonl", [{"step": 1, "time/step": 1.0, "actor/loss": 0.5}])
    assert main(["doctor", str(tmp_path)]) == 2
    assert "no run of rllm, TRL, verl or prime-rl" in capsys.readouterr().err


def test_report_lists_rules_without_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_verl(tmp_path)
    main(["doctor", str(tmp_path / "log.jsonl")])

    assert "without KL divergence from the reference model: kl_explosion" in capsys.readouterr().out


@pytest.mark.parametrize(("package", "names"), [("trl", other_frameworks.TRL), ("verl", other_frameworks.VERL)])
def test_names_occur_in_source_of_framework(package: str, names: dict[Column, str]) -> None:
    source = "".join(file.read_text() for file in directory_of(package).rglob("*.py"))
    # The trainer of transformers logs these.
    logged = {"loss", "learning_rate", "grad_norm", "eval_reward"}
    missing = {name for name in names.values() if name not in source and name.partition("/")[2] not in source}

    assert missing <= logged


def test_each_rule_has_measured_false_alarms() -> None:
    assert set(false_alarms()) == {rule.name for rule in RULES}


def test_no_rule_needs_an_unknown_rule() -> None:
    names = {rule.name for rule in RULES}

    assert {other for rule in RULES for other in rule.unless} <= names
