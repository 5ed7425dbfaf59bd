"""What errors are made of."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

from rllm_core.errors import BackendError, ConfigError, LossError, RllmError, did_you_mean


@pytest.mark.parametrize("kind", [RllmError, BackendError, ConfigError, LossError])
def test_message_and_hint_stay_apart_on_the_way_from_another_process(kind: type[RllmError]) -> None:
    error = pickle.loads(pickle.dumps(kind("It failed.", "Try again.")))
    assert type(error) is kind
    assert (error.message, error.hint, str(error)) == ("It failed.", "Try again.", "It failed. Try again.")


def test_a_name_in_other_letters_is_meant() -> None:
    assert did_you_mean("RLOO", ["grpo", "rloo"]) == "Did you mean 'rloo'?"


PROGRAM = "from rllm_core import AgentTrainer, build_train_config; {}"


@pytest.mark.parametrize(
    ("call", "debug", "shown"),
    [
        ("build_train_config(group_size='many')", "0", 'error: `rllm.rollout.n` is "many"'),
        ("AgentTrainer(config={'rllm': {'rollot': 1}})", "0", "error: `rollot` is not a key of rllm"),
        ("build_train_config(group_size='many')", "1", "Traceback (most recent call last)"),
        ("AgentTrainer(nothing=1)", "0", "Traceback (most recent call last)"),
    ],
)
def test_a_program_that_an_error_of_ours_ends_shows_the_paragraph(call: str, debug: str, shown: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(call)]
    ended = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"RLLM_DEBUG": debug}, timeout=200)
    assert (ended.returncode, ended.stderr[: len(shown)]) == (1, shown)


def test_a_notebook_shows_the_paragraph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLLM_DEBUG", "0")
    assert ConfigError("Wrong.", "Mend it.")._render_traceback_() == ["error: Wrong. Mend it."]
