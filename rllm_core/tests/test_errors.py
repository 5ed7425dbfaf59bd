"""What errors are made of."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rllm_core.errors import BackendError, ConfigError, LossError, RllmError, described, did_you_mean


@pytest.mark.parametrize("kind", [RllmError, BackendError, ConfigError, LossError])
def test_message_and_hint_stay_apart_on_the_way_from_another_process(kind: type[RllmError]) -> None:
    error = pickle.loads(pickle.dumps(kind("It failed.", "Try again.")))
    assert type(error) is kind
    assert (error.message, error.hint, str(error)) == ("It failed.", "Try again.", "It failed. Try again.")


def test_a_name_in_other_letters_is_meant() -> None:
    assert did_you_mean("RLOO", ["grpo", "rloo"]) == "Did you mean 'rloo'?"


def _raised_by(function: Callable[[], Any]) -> BaseException:
    with pytest.raises(Exception) as caught:
        function()
    return caught.value


def _written(folder: Path, name: str, text: str) -> Callable[[], Any]:
    """The function `run` of a module in a file."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), names)
    return names["run"]  # type: ignore[no-any-return]


def test_an_error_names_the_last_line_of_somebodys_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the library which they called: it is their call that is wrong."""
    monkeypatch.chdir(tmp_path)
    run = _written(tmp_path, "mine.py", "import json\ndef run():\n    return json.loads('{')\n")
    error = _raised_by(run)
    assert isinstance(error, json.JSONDecodeError)
    assert described(error) == f"JSONDecodeError: {error} (mine.py, line 3)"


def test_an_error_in_an_installed_plugin_names_the_plugin_and_not_what_it_called(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "site-packages"
    inner = _written(site, "other/inner.py", "def run():\n    raise ValueError('no')\n")
    run = _written(site, "plugin/outer.py", "def run(inner=None):\n    return INNER()\n")
    run.__globals__["INNER"] = inner
    error = _raised_by(run)
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without the frames of this test
    assert described(error) == f"ValueError: no ({site}/plugin/outer.py, line 2)"


def test_an_error_that_passed_nobodys_code_has_no_place() -> None:
    assert described(ValueError("no")) == "ValueError: no"
    assert described(ValueError()) == "ValueError"
