"""Every token once, exactly, whatever the turns look like."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rllm_core.data.token_buffer import TokenBuffer
from rllm_core.data.types import Step, Trajectory

TOKEN = st.integers(0, 3)  # few different ones, so that prompts often share prefixes by chance
LOGPROB = st.floats(-50, 0, width=32)


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[list[int], list[int], list[float]]]:
    """Turns of which some extend what came before, some rewrite it, and some are empty."""
    made: list[tuple[list[int], list[int], list[float]]] = []
    history: list[int] = []
    for _ in range(draw(st.integers(0, 8))):
        start = history if draw(st.booleans()) else draw(st.lists(TOKEN, max_size=4))
        prompt = start + draw(st.lists(TOKEN, max_size=3))
        response = draw(st.lists(TOKEN, max_size=4 if prompt else 0))
        logprobs = draw(st.lists(LOGPROB, min_size=len(response), max_size=len(response)))
        made.append((prompt, response, logprobs))
        history = prompt + response
    return made


def _assert_holds(steps: list[Step], expected: list[tuple[list[int], list[int], list[float]]]) -> None:
    for step, (prompt, response, logprobs) in zip(steps, expected, strict=True):
        assert step.prompt_ids.tolist() == prompt
        assert step.response_ids.tolist() == response
        assert step.logprobs.tolist() == logprobs


@given(turns())
def test_any_sequence_of_turns_comes_back_exactly(made: list[tuple[list[int], list[int], list[float]]]) -> None:
    trajectory = Trajectory("agent")
    breaks = 0
    for index, (prompt, response, logprobs) in enumerate(made):
        before = made[index - 1][0] + made[index - 1][1] if index else []
        breaks += prompt[: len(before)] != before
        trajectory.add_step(prompt, response, logprobs)
    _assert_holds(trajectory.steps, made)
    assert (trajectory.tokens.prefix_breaks, trajectory.tokens.turns) == (breaks, len(made))
    assert int(trajectory.tokens.sampled.sum()) == sum(len(response) for _, response, _ in made)
    assert not trajectory.tokens.logprobs[~trajectory.tokens.sampled].any()


@given(turns())
def test_free_steps_give_the_same_buffer(made: list[tuple[list[int], list[int], list[float]]]) -> None:
    added = Trajectory("agent")
    for prompt, response, logprobs in made:
        added.add_step(prompt, response, logprobs)
    absorbed = Trajectory("agent", [Step(prompt, response, logprobs) for prompt, response, logprobs in made])
    assert absorbed.tokens.ids.tolist() == added.tokens.ids.tolist()
    assert absorbed.tokens.logprobs.tolist() == added.tokens.logprobs.tolist()
    assert absorbed.tokens.sampled.tolist() == added.tokens.sampled.tolist()
    assert absorbed.tokens.segment_starts == added.tokens.segment_starts
    assert [step.span for step in absorbed.steps] == [step.span for step in added.steps]
    _assert_holds(absorbed.steps, made)


def test_plain_lists_are_stored_as_int32_and_float32() -> None:
    step = Step(prompt_ids=[1, 2], response_ids=[3], logprobs=[-0.1])
    assert (step.prompt_ids.dtype, step.response_ids.dtype, step.logprobs.dtype) == (np.int32, np.int32, np.float32)
    assert step.logprobs[0] == np.float32(-0.1)


def test_rewritten_history_starts_a_counted_segment() -> None:
    trajectory = Trajectory("agent")
    trajectory.add_step([1, 2], [3], [-1.0])
    trajectory.add_step([1, 9], [4], [-2.0])
    trajectory.add_step([1, 9, 4, 5], [6], [-3.0])
    assert trajectory.tokens.prefix_breaks == 1
    assert trajectory.tokens.segment_starts == [0, 3]
    assert trajectory.tokens.ids.tolist() == [1, 2, 3, 1, 9, 4, 5, 6]
    assert trajectory.tokens.sampled.tolist() == [False, False, True, False, False, True, False, True]


def test_step_arrays_are_views_that_survive_growth() -> None:
    trajectory = Trajectory("agent")
    step = trajectory.add_step([1, 2], [3, 4], [-1.0, -2.0])
    buffer = trajectory.tokens
    assert np.shares_memory(step.prompt_ids, buffer.ids)
    assert np.shares_memory(step.response_ids, buffer.ids)
    assert np.shares_memory(step.logprobs, buffer.logprobs)
    trajectory.add_step([1, 2, 3, 4, *range(1000)], [7], [-2.0])
    assert (step.prompt_ids.tolist(), step.logprobs.tolist()) == ([1, 2], [-1.0, -2.0])


def test_appended_steps_enter_the_buffer() -> None:
    trajectory = Trajectory("agent", [Step([1], [2], [-1.0])])
    late = Step([1, 2, 3], [4], [-2.0])
    trajectory.steps.append(late)
    trajectory.add_step([1, 2, 3, 4], [5], [-3.0])
    assert trajectory.tokens.ids.tolist() == [1, 2, 3, 4, 5]
    assert late.buffer is trajectory.tokens
    assert (trajectory.response_length, trajectory.tokens.prefix_breaks) == (3, 0)


def test_removed_step_leaves_the_buffer() -> None:
    trajectory = Trajectory("agent")
    trajectory.add_step([1], [2], [-1.0])
    trajectory.add_step([1, 2, 3], [4], [-2.0])
    del trajectory.steps[0]
    assert trajectory.tokens.ids.tolist() == [1, 2, 3, 4]
    assert trajectory.tokens.sampled.tolist() == [False, False, False, True]
    trajectory.steps.clear()
    assert len(trajectory.tokens) == 0


@pytest.mark.parametrize("logprobs", [[], [-1.0], [-1.0, -2.0, -3.0]])
def test_wrong_number_of_logprobs_is_an_error(logprobs: list[float]) -> None:
    trajectory = Trajectory("agent")
    with pytest.raises(ValueError, match=f"{len(logprobs)} log-probs for 2 response tokens"):
        trajectory.add_step([1], [2, 3], logprobs)
    assert trajectory.steps == []
    assert len(trajectory.tokens) == 0


def test_response_without_prompt_is_an_error_without_effect() -> None:
    complaint = "a model call starts from at least one token: what is sampled first cannot be trained on"
    trajectory = Trajectory("agent")
    for call in (Step, trajectory.add_step):
        with pytest.raises(ValueError, match=f"^{complaint}$"):
            call([], [1, 2], None)
    assert (trajectory.steps, len(trajectory.tokens)) == ([], 0)
    trajectory.add_step([1], [2], [-1.0])
    with pytest.raises(ValueError, match=f"^{complaint}$"):
        trajectory.add_step([], [3], [-1.0])
    assert (len(trajectory.steps), trajectory.tokens.ids.tolist(), trajectory.tokens.prefix_breaks) == (1, [1, 2], 0)


def test_a_turn_without_any_token_is_no_error() -> None:
    buffer = TokenBuffer()
    buffer.append_turn([], [], None)
    buffer.append_turn([1], [2], None)
    assert (buffer.turns, buffer.prefix_breaks, buffer.ids.tolist()) == (2, 0, [1, 2])


def test_log_probs_that_are_not_given_stay_unknown() -> None:
    assert np.isnan(Step([1], [2, 3]).logprobs).all()
    known, unknown = Step([1], [2, 3], [-0.5, None]).logprobs.tolist()
    assert (known, np.isnan(unknown)) == (-0.5, True)
    # What the model did not sample has none, whatever is known of the rest.
    assert Step([1], [2, 3]).buffer.logprobs[0] == 0.0


def test_ids_must_be_a_flat_list() -> None:
    with pytest.raises(ValueError, match="expected flat lists"):
        Step(prompt_ids=[[1, 2]], response_ids=[3])


def test_group_role_follows_the_last_colon(group: Callable[..., object]) -> None:
    roles = {group_id: group(group_id, []).group_role for group_id in ("task", "a:b:solver", "x:")}  # type: ignore[attr-defined]
    assert roles == {"task": "all_groups", "a:b:solver": "solver", "x:": ""}
