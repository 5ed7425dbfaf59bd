"""Which trajectories a tracker shows, and as what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rllm.trackers.episode_table import MOST_CHARACTERS, as_markdown, due_rows
from rllm.trackers.options import EpisodeTableParams, WeightsAndBiasesParams
from rllm_core.contracts.train_step import TrainStep

MakeStep = Callable[..., TrainStep]


@pytest.mark.parametrize(
    ("count", "rewards"),
    [(0, []), (1, [None]), (2, [None, 4.0]), (3, [None, 2.0, 4.0]), (9, [None, 1.0, 2.0, 3.0, 4.0])],
)
def test_rewards_are_spread_over_their_range(make_step: MakeStep, count: int, rewards: list[float | None]) -> None:
    rows = due_rows(make_step(0, 3.0, 1.0, None, 4.0, 2.0), EpisodeTableParams(episodes=count))
    assert [row[2] for row in rows] == rewards


def test_steps_between_show_none(make_step: MakeStep) -> None:
    params = EpisodeTableParams(episodes_every=3)
    assert [len(due_rows(make_step(number, 1.0), params)) for number in range(4)] == [1, 0, 0, 1]


def test_a_row_has_the_whole_conversation(make_step: MakeStep) -> None:
    (row,) = due_rows(make_step(0, 1.0), EpisodeTableParams())
    assert row == ("t:0", "agent", 1.0, False, "env_done", "[user] a|b\n[response] <b>1.0</b>")


def test_a_long_conversation_is_cut_in_its_middle(make_step: MakeStep) -> None:
    step = make_step(0, 1.0)
    step.generated[0].trajectories[0].steps[0].text = "x" * 9000 + "end"
    ((*_, text),) = due_rows(step, EpisodeTableParams())
    assert len(text) == MOST_CHARACTERS + len("\n…\n")
    assert (text.startswith("[user] a|b"), text.endswith("end")) == (True, True)


def test_texts_stay_in_their_cells(make_step: MakeStep) -> None:
    lines = as_markdown(due_rows(make_step(0, 1.0), EpisodeTableParams())).splitlines()
    shown = "[user] a&#124;b<br>[response] &lt;b&gt;1.0&lt;/b&gt;"
    assert lines[2:] == [f"| t:0 | agent | 1.0 | False | env_done | {shown} |"]


def test_no_text_is_sent_away_unless_asked_for(make_step: MakeStep) -> None:
    assert due_rows(make_step(0, 1.0), WeightsAndBiasesParams()) == due_rows(make_step(0), EpisodeTableParams()) == []
