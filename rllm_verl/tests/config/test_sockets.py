"""Two runs on one machine hand weights over by sockets of different paths, and both sides of a run by the same."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from rllm_verl.sockets import CHOSEN_PLUGINS, OF_VERL, PLUGIN, RUN, name_socket, new_run, register

JOB = "01000000"


def sender_path() -> str:
    """As a worker has it, in the environment of this process."""
    rollout = SimpleNamespace(zmq_handle=f"ipc:///tmp/rl-colocate-zmq-{JOB}-replica-0-rank-1.sock")
    name_socket(rollout, JOB)
    return rollout.zmq_handle


def receiver_path() -> str:
    """As verl's part inside vLLM has it."""
    register()
    return f"ipc:///tmp/rl-colocate-zmq-{os.environ[OF_VERL]}-replica-0-rank-1.sock"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv(OF_VERL, JOB)
    monkeypatch.delenv(RUN, raising=False)
    monkeypatch.delenv(CHOSEN_PLUGINS, raising=False)
    return monkeypatch


def test_socket_paths_agree_within_and_differ_between_runs(environment: pytest.MonkeyPatch) -> None:
    paths = []
    for variables in (new_run(), new_run()):
        environment.setenv(RUN, variables[RUN])
        assert sender_path() == receiver_path()
        paths.append(sender_path())
    assert paths[0] != paths[1]


@pytest.mark.parametrize("variable", [None, CHOSEN_PLUGINS])
def test_without_variable_or_plugin_verl_path_is_kept(environment: pytest.MonkeyPatch, variable: str | None) -> None:
    if variable is not None:
        environment.setenv(RUN, "mine")
        environment.setenv(variable, "another")
    assert sender_path() == receiver_path() == f"ipc:///tmp/rl-colocate-zmq-{JOB}-replica-0-rank-1.sock"


def test_a_rollout_without_such_a_socket_is_unchanged(environment: pytest.MonkeyPatch) -> None:
    environment.setenv(RUN, "mine")
    rollout = SimpleNamespace()
    name_socket(rollout, JOB)
    assert vars(rollout) == {}


def test_vllm_finds_the_plugin() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name=PLUGIN)
    assert found.load() is register


def test_verl_forms_the_paths_so() -> None:
    """Its modules cannot be imported without vLLM."""
    spec = find_spec("verl")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    directory = Path(spec.submodule_search_locations[0], "workers", "rollout", "vllm_rollout")
    sender, receiver = ((directory / name).read_text() for name in ("vllm_rollout.py", "utils.py"))
    assert 'self.zmq_handle = f"ipc:///tmp/rl-colocate-zmq-{job_id}-replica-' in sender
    assert f'job_id = os.environ.get("{OF_VERL}", "0")' in receiver
    assert 'return f"ipc:///tmp/rl-colocate-zmq-{job_id}-replica-' in receiver
