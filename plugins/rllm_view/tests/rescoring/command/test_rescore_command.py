"""`rllm rescore`: what it prints, at which widths, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from expecting import check_printed, check_values

from rllm.cli.main import main

Rllm = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def steps(keep: Callable[..., Path]) -> None:
    """Two steps of the run."""
    for step, rewards in enumerate(([0, 0, 0, 1], [1, 1, 0.5, 1])):
        keep(step, {"task": rewards}, lengths={"task": [1, 2, 3, 4]})


@pytest.fixture
def printed(run: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Standard output of a command that succeeds."""

    def printed(*options: str) -> str:
        assert main(["rescore", str(run), *options]) == 0
        return capsys.readouterr().out

    return printed


def test_estimators_are_compared_with_the_first(printed: Callable[..., str]) -> None:
    lines = printed("--estimator", "grpo", "--estimator", "reinforce").splitlines()
    table = next(index for index, line in enumerate(lines) if line.startswith("role "))
    assert lines[table].split("  ")[0] == "role"
    assert lines[table + 1].split() == ["agent", "grpo", "0", "of", "2", "0.866", "reference"]
    assert lines[table + 2].split()[:6] == ["agent", "reinforce", "0", "of", "2", "0.562"]
    assert re.findall(r"[0-9.]+%", next(line for line in lines if "change from 0" in line))[:2] == ["12.5%", "37.5%"]
    differences = next(index for index, line in enumerate(lines) if line.startswith("largest"))
    assert lines[differences + 1].split()[-4:] == ["task:2/agent", "0.500", "-1.732", "+0.500"]


def test_what_was_applied_is_said_first(printed: Callable[..., str], run: Path) -> None:
    lines = printed().splitlines()
    check_values(lines[0], "8 episodes", "2 steps", run)
    check_values(lines[1], run, "reference: grpo")
    check_values(lines[2], "grouping rllm-core/task_role", "rewards: error", "masked: nothing")
    check_values(lines[2], "rejection: rllm-core/none")


def test_options_are_spelled_inline(printed: Callable[..., str]) -> None:
    output = printed("--estimator", "{name: grpo, norm_adv_by_std_in_grpo: false}")
    assert "grpo(norm_adv_by_std_in_grpo=false)" in output


def test_trajectories_that_are_alike_share_a_row(printed: Callable[..., str]) -> None:
    lines = printed("--groups", "2").splitlines()
    assert [line.split()[0] for line in lines if line.startswith("task:")] == [
        f"task:{index}/agent" for index in range(4)
    ] * 2
    assert "task:" not in printed("--groups", "0")


def test_as_json_standard_output_is_json_alone(printed: Callable[..., str]) -> None:
    data = json.loads(printed("--estimator", "rloo", "--json"))
    assert data["setups"] == ["grpo", "rloo"]
    assert len(data["groups"]) == 2


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        (["--estimator", "grop"], "unknown-plugin", ("--estimator: ", "'grop'", "'grpo'")),
        (["--estimator", "{name: grpo, norm: 1}"], "unknown-option", ("--estimator.norm", "'grpo'")),
        (["--role-estimator", "agent"], "usage-error", ("--role-estimator", "'agent'", "ROLE=NAME")),
        (["--estimator", "grpo", "--role-estimator", "agnt=rloo"], "unknown-role", ("--role-estimator", "'agnt'")),
        (["--role-estimator", "a=grpo", "--role-estimator", "a=rloo"], "usage-error", ("--role-estimator", "'a'")),
        (["--grouping", "task_rol"], "unknown-plugin", ("--grouping: ", "'task_rol'")),
        (["--rejection", "grop"], "unknown-plugin", ("--rejection: ", "'grop'")),
        (["--groups", "-1"], "usage-error", ("'--groups'",)),
    ],
)
def test_mistake_has_exit_code_2(
    run: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: str, values: tuple[str, ...]
) -> None:
    assert main(["rescore", str(run), *options]) == 2
    captured = capsys.readouterr()
    check_printed(captured.err, code, *values)
    assert captured.out == ""


def test_without_episodes_it_says_how_to_keep_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["rescore", str(tmp_path / "empty")]) == 2
    assert "rllm.record=tokens" in capsys.readouterr().err


ESTIMATOR = """
from rllm_core.contracts.estimator import Advantages
from rllm.api.registration import register_rllm_estimator

@register_rllm_estimator("half")
def half(inputs, params):
    return Advantages(values=0.5 * inputs.rewards)
"""


def test_plugins_are_those_the_run_had(rllm: Rllm, run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ESTIMATOR)
    plugins = "plugins: {import_modules: [mine], allow: []}"
    (run / "config.yaml").write_text(f"rllm: {{{plugins}, algorithm: {{adv_estimator: half}}}}\n")
    assert "reference: half" in rllm("rescore", str(run)).stdout
    refused = rllm("rescore", str(run), "--estimator", "remax")
    assert refused.returncode == 2, "the run did not allow its package"


def test_loose_files_name_the_modules_themselves(rllm: Rllm, run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ESTIMATOR)
    loose = (run / "record" / "episodes" / "step_000000.parquet").rename(tmp_path / "loose.parquet")
    assert "agent  half" in rllm("rescore", str(loose), "--import-module", "mine", "--estimator", "half").stdout
    assert "half" in rllm("rescore", str(loose), "--estimator", "half").stderr


def test_a_run_whose_own_estimator_needs_a_model_is_rescored_without_it(printed: Callable[..., str], run: Path) -> None:
    (run / "config.yaml").write_text("rllm: {algorithm: {adv_estimator: grpo, estimator_map: {judge: gae}}}\n")
    lines = printed("--estimator", "rloo").splitlines()
    assert lines[1].endswith("reference: rloo")
    check_values(lines[3], "rllm.algorithm.estimator_map.judge", "gae")
