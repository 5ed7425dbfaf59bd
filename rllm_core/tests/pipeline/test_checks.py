"""The lists of checks, and what becomes of what they find."""

from __future__ import annotations

from inspect import getmembers, isfunction, isgeneratorfunction
from types import ModuleType

import pytest
from expecting import expect_error

from rllm.planning import idle_checks, plugin_checks, term_checks
from rllm.planning.problem import Problem, refused, settle, unused, warning
from rllm_core.errors import ConfigError

OTHERS = {"too_few_tasks", "find_problems"}
"""A check that also takes the tasks, which `check_to_train` calls, and the function that calls all other checks."""


@pytest.mark.parametrize("module", [idle_checks, plugin_checks, term_checks])
def test_every_check_is_in_the_list(module: ModuleType) -> None:
    own = [each for _, each in getmembers(module, isfunction) if each.__module__ == module.__name__]
    public = {each.__name__ for each in own if isgeneratorfunction(each) and not each.__name__.startswith("_")}
    assert public - OTHERS <= {check.__name__ for check in module.CHECKS}
    assert len(set(module.CHECKS)) == len(module.CHECKS)


REFUSED = refused("some-mistake", "a.b", "Impossible.", "Remove a.b.")
UNUSED = unused("unused-key", "a.c", "Useless.", "Set a.b.")
WARNING = warning("some-mistake", "a.d", "doubtful")


@pytest.mark.parametrize("problem", [REFUSED, UNUSED])
def test_first_check_that_stops_is_an_error(problem: Problem) -> None:
    with pytest.raises(ConfigError) as caught:
        settle([WARNING, problem, REFUSED], "error")
    error = caught.value
    assert (error.code, error.message, error.hint) == (problem.code, problem.text, problem.remedy)


def test_unused_keys_may_warn_but_rejected_keys_stop() -> None:
    assert settle([WARNING, UNUSED], "warn") == ["doubtful", "Useless.\nhint: Set a.b."]
    with expect_error(ConfigError, "some-mistake", "Impossible"):
        settle([UNUSED, REFUSED], "warn")
