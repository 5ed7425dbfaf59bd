"""Several environments in one run."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import expect_error

from rllm.environments.mixed import Mixed, check, check_task, members
from rllm.environments.options import MixedParams
from rllm_core.errors import ConfigError

BOTH = {"guess": 3.0, "small": {"name": "sum", "ratio": 2, "largest": 2}}


def mixed(environments: dict[str, Any]) -> MixedParams:
    return MixedParams(environments=environments)


def test_tasks_come_from_all_environments() -> None:
    params = mixed(BOTH)
    tasks = Mixed.tasks("train", params)
    assert [len([task for task in tasks if task.data_source == source]) for source in BOTH] == [16, 9]
    assert tasks[0].id == "guess/guess-0"
    assert tasks[-1].data == {"a": 2, "b": 2, "environment": "small", "ratio": 2.0}


def test_a_rollout_runs_in_its_own_environment() -> None:
    params = mixed(BOTH)
    tasks = Mixed.tasks("train", params)
    environment = Mixed(params)
    environment.close()
    assert environment.reset(tasks[-1].data) == "What is 2 plus 2? Reply with a number only."
    outcome: Any = environment.step("4")
    assert (outcome.reward, outcome.done, outcome.correct) == (1.0, True, True)
    assert environment.final_state() is None
    environment.close()
    environment.reset(tasks[3].data)
    outcome = environment.step("3")
    assert outcome.correct


def test_checks_of_the_environments_run() -> None:
    params = mixed(BOTH)
    check(params)
    for task in Mixed.tasks("val", params):
        check_task(params, task.data)


@pytest.mark.parametrize(
    ("environments", "code", "value"),
    [
        ({"gess": 1.0}, "unknown-plugin", "guess"),
        ({"guess": -1.0}, "wrong-value", "guess.ratio"),
        ({"guess": {"ratio": "2"}}, "wrong-value", "guess.ratio"),
        ({"sum": {"larges": 3}}, "unknown-option", "largest"),
        ({"mixed": {"environments": {"sum": 1.0}}}, "wrong-value", "`mixed` itself"),
    ],
)
def test_wrong_environments_are_rejected(environments: dict[str, Any], code: str, value: str) -> None:
    with expect_error(ConfigError, code, value):
        members(mixed(environments))


def test_environments_with_tools_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rllm.environments.sum.Sum.tools", lambda self, task: [])
    with expect_error(ConfigError, "wrong-value", "has tools"):
        Mixed.tasks("train", mixed({"sum": 1.0}))


def test_tasks_of_a_dataset_are_rejected() -> None:
    with expect_error(ConfigError, "tasks-not-for-environment"):
        check_task(mixed(BOTH), {"question": "1+1"})
