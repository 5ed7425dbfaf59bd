"""Classes for TRL's `environment_factory`, run by the workflow `tool_calling`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecting import expect_error

from rllm.tools.options import TrlEnvironmentParams
from rllm.tools.trl_environment import TrlEnvironment, check_factory
from rllm_core.contracts.environment import Outcome
from rllm_core.errors import ConfigError

Write = Callable[[str], Path]

COUNTER = '''
class Counter:
    """Counts up to the target of the row."""

    def __init__(self):
        self.value = 0

    def reset(self, target, **row):
        self.value = 0
        self.target = target
        return f" Count to {target}."

    def add(self, amount: int) -> int:
        """Adds to the counter.

        Args:
            amount: how much
        """
        self.value += amount
        return self.value

    def get_reward(self):
        return float(self.value == self.target)

    def _hidden(self): ...
'''


def _environment(path: Path, name: str = "Counter", **options: Any) -> TrlEnvironment:
    return TrlEnvironment(TrlEnvironmentParams(factory=f"{path}:{name}", **options))


def _finish(environment: TrlEnvironment) -> Outcome:
    return asyncio.run(environment.step("done"))


def test_reset_receives_the_row_and_its_text_ends_the_prompt(tool_file: Write) -> None:
    environment = _environment(tool_file(COUNTER))

    assert environment.reset({"prompt": "Begin.", "target": 3}) == "Begin. Count to 3."
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Begin."}]
    assert environment.reset({"prompt": messages, "target": 4}) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Begin. Count to 4."},
    ]


def test_public_methods_are_tools_and_change_the_reward(tool_file: Write) -> None:
    path = tool_file(COUNTER)
    environment, other = _environment(path), _environment(path)
    for each in (environment, other):
        each.reset({"prompt": "Begin.", "target": 3})
    (add,) = environment.tools({})

    assert _finish(environment) == Outcome(reward=0.0, done=True)
    assert add(amount=3) == 3
    assert _finish(environment) == Outcome(reward=1.0, done=True)
    assert _finish(other).reward == 0.0


@pytest.mark.parametrize(
    ("method", "reward"),
    [
        ("async def get_reward(self): return 0.5", 0.5),
        ("def get_reward(self): return None", 0.0),
        ("def other(self): return 1.0", 0.0),
    ],
)
def test_the_reward_may_be_awaited_or_left_to_reward_functions(tool_file: Write, method: str, reward: float) -> None:
    path = tool_file(f"class World:\n    def reset(self, **row): ...\n    {method}\n")

    assert _finish(_environment(path, "World")).reward == reward
    path = tool_file("class World:\n    def reset(self, **row): ...\n    def get_reward(self): raise OSError('gone')\n")
    with pytest.raises(OSError, match="gone"):
        _finish(_environment(path, "World"))


@pytest.mark.parametrize(
    ("source", "code", "value"),
    [
        ("class World: ...\n", "environment-options-rejected", "reset"),
        ("class World:\n    def __init__(self, port): ...\n", "environment-options-rejected", "port"),
        ("class Wrld: ...\n", "unknown-function", "Wrld"),
        ("class World:\n    def reset(self): ...\n    def use(self, what): ...\n", "bad-tool", "use"),
    ],
)
def test_an_unusable_class_is_refused(tool_file: Write, source: str, code: str, value: str) -> None:
    path = tool_file(source)

    with expect_error(ConfigError, code, value):
        check_factory(TrlEnvironmentParams(factory=f"{path}:World"))
