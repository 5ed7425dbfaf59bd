"""The taskset, the commands and the settings of docs/how-to/verifiers.md."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import documents
import pytest
import yaml

from rllm_envs.verifiers.loading import check_environment
from rllm_envs.verifiers.options import VerifiersParams

PAGE = "docs/how-to/verifiers.md"
SHORT = ("data.max_prompt_length=300", "data.max_response_length=8")


def test_commands_of_the_page_work(tmp_path: Path) -> None:
    (program,) = documents.blocks(PAGE, "python")
    (tmp_path / "doubles.py").write_text(program)
    lines = [line.partition(" rllm ")[2] for line in documents.blocks(PAGE, "sh")[0].splitlines()]
    _, train, evaluate = (shlex.split(line) for line in lines)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([".", os.environ["PYTHONPATH"]]), "HF_HUB_OFFLINE": "1"}
    for words in (train, evaluate):
        command = [sys.executable, "-m", "rllm", *words, *SHORT]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr


def test_settings_of_the_page_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    (text,) = documents.blocks(PAGE, "yaml")
    options = yaml.safe_load(text)["rllm"]["env"]["env_args"]
    # The taskset of the page is the reader's. This one has no option `split`.
    options["config"]["taskset"], options["val_taskset"] = {}, {}
    check_environment(VerifiersParams(id="vf_errands", **options))
