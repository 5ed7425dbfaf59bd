"""A resumed run and its sources: which differences stop it, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from rllm.training.resume_checks import RunSources
from rllm_core.contracts.chosen import PluginChoice, Registered
from rllm_core.contracts.params import NoParams
from rllm_core.contracts.reward import RewardPlugin
from rllm_core.errors import CheckpointError, PluginError

CHECKPOINT = Path("checkpoints/step_000002")
FILE = "def score(rollout):\n    return 1\n"


def sources(texts: Any, on_changed: Literal["error", "warn"] = "error") -> RunSources:
    def give(params: Any) -> Mapping[str, str]:
        return dict(texts)

    plugin = RewardPlugin(name="mine", summary="", load=lambda: lambda params: None, sources=give)
    chosen = PluginChoice(registered=Registered(plugin=plugin, distribution="mine", version="0"), params=NoParams())
    return RunSources([chosen], on_changed)


def list_differences(before: str, now: str) -> str:
    """What a resumed run that accepts changes says."""
    lines: list[str] = []
    sources({"rewards.py": now}, "warn").check_same({"reward mine: rewards.py": before}, CHECKPOINT, lines.append)
    return "".join(lines)


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (FILE.replace("1", "2"), "line 2 was '    return 1' and is '    return 2'."),
        (FILE + "print()\n", "line 3 was not there and is 'print()'."),
        ("def score(rollout):\n", "line 2 was '    return 1' and is not there."),
        (FILE.replace("\n", "\r\n"), "its line ends differ."),
    ],
)
def test_changed_sources_stop_the_run_or_warn(now: str, difference: str) -> None:
    message = f"The source of reward mine: rewards.py changed after {CHECKPOINT} was made: {difference}"
    with pytest.raises(CheckpointError) as caught:
        sources({"rewards.py": now}).check_same({"reward mine: rewards.py": FILE}, CHECKPOINT, pytest.fail)
    assert caught.value.message == message
    assert "rllm.trainer.on_changed_source=warn" in caught.value.hint
    assert list_differences(FILE, now) == message


def test_equal_and_new_sources_say_nothing() -> None:
    assert list_differences(FILE, FILE) == ""
    assert sources({"rewards.py": FILE}).state_dict() == {"reward mine: rewards.py": FILE}
    sources({"new.py": FILE}).check_same({"reward mine: old.py": FILE}, CHECKPOINT, pytest.fail)


def test_sources_that_fail_name_the_reward() -> None:
    with pytest.raises(PluginError, match="`sources` of reward mine/mine"):
        sources(7)
