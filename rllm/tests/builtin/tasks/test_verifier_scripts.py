"""Commands of tests that an agent could abuse, and the reward files that tests declare."""

from __future__ import annotations

from pathlib import Path

import pytest

from rllm.builtin.tasks.task_directories import (
    REWARD_FILES,
    TaskDirectories,
    TaskDirectoriesParams,
    find_reward_files,
    find_unprotected,
)


def write(directory: Path, script: str, checks: str = "") -> Path:
    (directory / "test.sh").write_text(f"#!/bin/bash\n{script}\n")
    (directory / "check.py").write_text(checks)
    return directory


@pytest.mark.parametrize(
    "script",
    [
        "python3 solution.py",
        "out=$(timeout 5 /usr/bin/python3 /app/solution.py < $SANDBOX_ROOT/tests/input)",
        "if ./program; then reward=1; fi",
        "env X=1 bash -e run.sh | cmp - answer",
        "diff <(node solution.js) expected",
        "source ~/.bashrc",
        "make test && echo 1",
        "bash -c 'nohup ./program &'",
        "git diff --quiet",
        "gcc -o program main.c",
        "pytest -q",
        "tar xf answer.tar -C $TMPDIR",
        "[[ $(untrusted python3 solution.py) -eq 7 ]] && reward=1",
        "python3 -m pytest test_of_the_agent.py",
        "PYTHONPATH=/app python3 /tests/check.py",
        "python3 -c 'import sys; sys.path.append(\"/app\"); import solution'",
    ],
)
def test_program_of_the_agent_is_found(tmp_path: Path, script: str) -> None:
    found = find_unprotected(write(tmp_path, script))
    assert found is not None and (found.place, found.text) == ("tests/test.sh:2", script)


@pytest.mark.parametrize(
    "script",
    [
        "untrusted timeout 5 python3 solution.py | cmp - $SANDBOX_ROOT/tests/expected",
        "python3 $SANDBOX_ROOT/tests/check.py answer.txt",
        "uvx -w pytest==8.4.1 pytest --ctrf /logs/verifier/ctrf.json /tests/check.py -rA",
        "cp /tests/check.py . && python3 check.py",
        "cd /tests\nbash run.sh",
        "python3 - <<'END'\nmake = 1\nEND",
        "# python3 solution.py",
        "tar xf $SANDBOX_ROOT/tests/data.tar",
        "n=$(cat answer.txt); [ $n -eq 7 ] && passed=$((passed + 1))",
        "python3 -c 'import json; json.load(open(\"answer.json\"))' && grep -q x answer.txt",
    ],
)
def test_command_without_programs_of_the_agent_is_not_found(tmp_path: Path, script: str) -> None:
    assert find_unprotected(write(tmp_path, script)) is None


def test_python_of_tests_is_searched(tmp_path: Path) -> None:
    code = "import subprocess\nsubprocess.run(['python3', 'solution.py'])"
    found = find_unprotected(write(tmp_path, "", code))
    assert found is not None and found.place == "tests/check.py:2"
    assert find_unprotected(write(tmp_path, "", code.replace("'python3'", "'untrusted', 'python3'"))) is None


@pytest.mark.parametrize(
    ("script", "files"),
    [
        ("echo 1 > /logs/verifier/reward.txt", ("reward.txt",)),
        ("echo 1 > /logs/verifier/reward.json", ("reward.json",)),
        ("echo reward.txt reward.json", REWARD_FILES),
        ("rewardkit /tests", REWARD_FILES),
    ],
)
def test_reward_files_are_those_that_tests_mention(tmp_path: Path, script: str, files: tuple[str, ...]) -> None:
    assert find_reward_files(write(tmp_path, script)) == files


def test_warning_names_first_task_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name / "tests").mkdir(parents=True)
        (tmp_path / name / "instruction.md").write_text("Go.")
        write(tmp_path / name / "tests", "make test" if name != "a" else "true")
    TaskDirectories.tasks("train", TaskDirectoriesParams(directory=str(tmp_path)))
    (warning,) = capsys.readouterr().err.splitlines()
    assert "tests/test.sh:2 of task b" in warning and "`make test`" in warning and "2 tasks" in warning
