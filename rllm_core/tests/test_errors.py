"""What errors are made of."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rllm_core.errors import BackendError, ConfigError, LossError, RllmError, describe_error, did_you_mean


@pytest.mark.parametrize("kind", [RllmError, BackendError, ConfigError, LossError])
def test_error_keeps_its_parts_between_processes(kind: type[RllmError]) -> None:
    error = pickle.loads(pickle.dumps(kind("some-mistake", "Failed.", "Retry.", "  log:\n    end")))
    assert type(error) is kind
    assert (error.code, error.message, error.hint) == ("some-mistake", "Failed.", "Retry.")
    assert error.details == "  log:\n    end"
    assert str(error) == "Failed.\n  log:\n    end\nhint: Retry."
    assert str(kind("some-mistake", "It failed.")) == "It failed."


def test_described_error_is_one_line_with_its_hint() -> None:
    assert describe_error(ConfigError("some-mistake", "Failed.", "Retry.")) == "ConfigError: Failed. Retry."


def test_a_name_in_other_letters_is_meant() -> None:
    assert did_you_mean("RLOO", ["grpo", "rloo"]) == "Did you mean 'rloo'?"


def _raised_by(function: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:
        function()
    return caught.value


def _load_written_run(directory: Path, name: str, text: str) -> Callable[[], Any]:
    """The function `run` of a module in a file."""
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), names)
    return names["run"]  # type: ignore[no-any-return]


def test_error_names_the_last_line_of_users_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the library which they called: it is their call that is wrong."""
    monkeypatch.chdir(tmp_path)
    run = _load_written_run(tmp_path, "mine.py", "import json\ndef run():\n    return json.loads('{')\n")
    error = _raised_by(run)
    assert isinstance(error, json.JSONDecodeError)
    assert describe_error(error) == f"JSONDecodeError: {error} (mine.py, line 3)"


def test_error_of_installed_plugin_names_the_plugin(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "site-packages"
    inner = _load_written_run(site, "other/inner.py", "def run():\n    raise ValueError('no')\n")
    run = _load_written_run(site, "plugin/outer.py", "def run(inner=None):\n    return INNER()\n")
    run.__globals__["INNER"] = inner
    error = _raised_by(run)
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without the frames of this test
    assert describe_error(error) == f"ValueError: no ({site}/plugin/outer.py, line 2)"


def test_error_outside_users_code_has_no_place() -> None:
    assert describe_error(ValueError("no")) == "ValueError: no"
    assert describe_error(ValueError()) == "ValueError"


PROGRAM = "from rllm_core import AgentTrainer, build_train_config; {}"


@pytest.mark.parametrize(
    ("call", "debug", "shown"),
    [
        pytest.param("AgentTrainer(nothing=1)", "0", "error[unknown-argument]: ", marks=pytest.mark.smoke),
        pytest.param("build_train_config(group_size='many')", "0", "error[wrong-value]: ", marks=pytest.mark.long),
        pytest.param("build_train_config(group_size='many')", "1", "Traceback ", marks=pytest.mark.long),
    ],
)
def test_failed_program_prints_error_without_traceback(
    rllm_from_inside: Any, call: str, debug: str, shown: str
) -> None:
    ended = rllm_from_inside(PROGRAM.format(call), RLLM_DEBUG=debug, RLLM_BLOCK_PLUGINS="")
    assert (ended.returncode, ended.stderr[: len(shown)]) == (1, shown)


def test_notebook_shows_error_without_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLLM_DEBUG", "0")
    error = ConfigError("some-mistake", "Wrong.", "Retry.")
    assert error._render_traceback_() == ["error[some-mistake]: Wrong.\nhint: Retry."]
