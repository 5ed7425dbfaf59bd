"""Options: what they set, and what is refused before a run starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expecting import check_values, expect_error
from hypothesis import given, strategies as st
from pydantic import ValidationError

from rllm_core.errors import ConfigError, RolloutError
from rllm_envs.reasoning_gym.environment import ReasoningGym, make_examples, read_answer
from rllm_envs.reasoning_gym.options import ReasoningGymParams
from rllm_envs.reasoning_gym.processes import check, find_config, find_system_prompt


def _params(generator: str = "chain_sum", **options: Any) -> ReasoningGymParams:
    return ReasoningGymParams(generator=generator, **options)


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"generator": "chain_summ"}, ["'chain_summ'", "'chain_sum'"]),
        ({"config": {"min_term": 3}}, ["config.min_term", "'min_terms'"]),
        ({"config": {"min_terms": "3"}}, ["config.min_terms", "'3'", "valid integer"]),
        ({"config": {"min_terms": 9, "max_terms": 3}}, ["max_terms must be >= min_terms"]),
        ({"config": {"seed": 3}}, ["config.seed", "rllm.env.env_args.seed"]),
        ({"config": {"size": 3}}, ["rllm.env.env_args.train_size", "val_size"]),
        ({"level": 99}, ["level", "99", "'chain_sum'"]),
        ({"generator": "acre", "level": 1}, ["level", "'acre'"]),
        ({"generator": "acre", "curriculum": {"x": 1}}, ["curriculum", "'acre'"]),
        ({"curriculum": {"num_digit": 1}}, ["curriculum.num_digit", "'num_digits'"]),
        ({"curriculum": {"num_digits": 99}}, ["99", "from 0 to"]),
        ({"level": 1, "config": {"min_terms": 3}}, ["'min_terms'"]),
        ({"system_prompt": "simpel"}, ["'simpel'", "'simple'"]),
        ({"generator": "caesar_cipher", "level": 3}, ["rotation must be in range"]),
    ],
)
def test_wrong_options_are_refused_before_a_run(options: dict[str, Any], values: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check(_params(**options))
    check_values(str(caught.value), *values)


def test_config_reaches_the_generator(open_task: Callable[..., Any]) -> None:
    _, [asked] = open_task("chain_sum", config={"min_terms": 4, "max_terms": 4, "min_digits": 1, "max_digits": 1})
    assert sum(asked["content"].count(sign) for sign in "+-") == 3


@pytest.mark.parametrize(
    ("generator", "config"),
    [
        ("rearc", {"diff_ub": 0.3, "board_format_opts": {"alphabet": ["a", "b"], "col_delimiter": ","}}),
        ("polynomial_multiplication", {"variables": ["a", "b"]}),
        ("calendar_arithmetic", {"year": 2020}),
        ("time_intervals", {"min_time": "01:00:00"}),
        ("composite", {"datasets": [{"name": "gcd", "weight": 1.0, "config": {}}]}),
    ],
)
def test_options_of_every_type_come_from_json(generator: str, config: dict[str, Any]) -> None:
    assert find_config(_params(generator, config=config)) == config


def test_a_level_sets_every_attribute() -> None:
    from reasoning_gym.factory import CURRICULA

    curriculum = CURRICULA["chain_sum"]()
    curriculum.set_global_level(2)
    expected = curriculum.generate_configuration()
    found = find_config(_params(level=2))
    assert found == {name: getattr(expected, name) for name in found}
    assert set(found) == {"min_digits", "max_digits", "min_terms", "max_terms"}


def test_levels_alternate_over_the_tasks() -> None:
    tasks = ReasoningGym.tasks("train", _params(levels=[0, 2], train_size=4))
    assert [task.data["level"] for task in tasks] == [0, 2, 0, 2]
    assert [task.data["config"] for task in tasks[:2]] == [find_config(_params(level=level)) for level in (0, 2)]


@pytest.mark.parametrize("options", [{"levels": [0, 0]}, {"levels": [0], "level": 1}, {"levels": [-1]}])
def test_levels_that_contradict_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        _params(**options)


def test_one_attributes_level_does_not_change_others() -> None:
    assert set(find_config(_params(curriculum={"num_terms": 1}))) == {"min_terms", "max_terms"}
    both = find_config(_params(level=2, curriculum={"num_terms": 0}))
    assert both["max_terms"] < find_config(_params(level=2))["max_terms"]
    assert both["max_digits"] == find_config(_params(level=2))["max_digits"]


@pytest.mark.long
def test_config_from_levels_can_be_read_again() -> None:
    """Task data is JSON."""
    from reasoning_gym.factory import CURRICULA

    for generator in sorted(CURRICULA):
        try:
            config = find_config(_params(generator, level=0, train_size=8))
        except ConfigError as error:
            assert "rejects its options" in error.message  # level 0 of reasoning-gym's own curriculum is invalid
        else:
            assert find_config(_params(generator, config=config, train_size=8)) == config


def test_named_system_prompts_are_those_of_reasoning_gym() -> None:
    from reasoning_gym.utils import SYSTEM_PROMPTS

    for name, text in SYSTEM_PROMPTS.items():
        assert find_system_prompt(_params(system_prompt=name)) == text
    assert find_system_prompt(_params(system_prompt="Think twice.")) == "Think twice."
    assert find_system_prompt(_params()) is None


def test_model_sees_the_prompt_and_system_prompt(open_task: Callable[..., Any]) -> None:
    _, [asked] = open_task("chain_sum")
    question = asked["content"]
    _, messages = open_task("chain_sum", template="Q: {question}\nA:", system_prompt="Be brief.")
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"Q: {question}\nA:"},
    ]


@pytest.mark.parametrize(
    ("response", "auto", "tags", "whole"),
    [
        ("7", "7", None, "7"),
        (" 7\n", "7", None, "7"),
        ("", None, None, None),
        ("so <answer> 7 </answer>.", "7", "7", "so <answer> 7 </answer>."),
        ("<answer>6</answer> no, <answer>7</answer>", "7", "7", "<answer>6</answer> no, <answer>7</answer>"),
        ("<answer></answer>", None, None, "<answer></answer>"),
        ("<answer>7", "<answer>7", None, "<answer>7"),
    ],
)
def test_what_is_the_answer(response: str, auto: str | None, tags: str | None, whole: str | None) -> None:
    assert [read_answer(response, how) for how in ("auto", "tags", "response")] == [auto, tags, whole]


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "7", " ", "\n", "a<b"]), max_size=8).map("".join))
def test_tags_are_read_as_reasoning_gym_reads_them(response: str) -> None:
    from reasoning_gym.utils import extract_answer

    assert read_answer(response, "tags") == (extract_answer(response) or None)


def test_examples_are_earlier_turns_with_their_own_seed(open_task: Callable[..., Any]) -> None:
    world, shown = open_task("chain_sum", examples=2, template="{question} Be brief.")
    assert [message["role"] for message in shown] == ["user", "assistant", "user", "assistant", "user"]
    assert all(message["content"].endswith(" Be brief.") for message in shown[::2])
    assert world.step(shown[-2]["content"]).reward < 1, "the last example is not the task"
    of_both_splits = {
        world.reset(task.data)[-1]["content"]
        for split in ("train", "val")
        for task in world.tasks(split, ReasoningGymParams(generator="chain_sum", train_size=8, val_size=8))
    }
    assert not of_both_splits & {message["content"] for message in shown[:-1]}


@pytest.mark.parametrize("how", ["auto", "tags", "response"])
def test_an_example_answers_as_answers_are_read(open_task: Callable[..., Any], how: str) -> None:
    _, shown = open_task("chain_sum", examples=1, answer=how)
    (example,) = make_examples(ReasoningGymParams(generator="chain_sum", examples=1), {}, 60.0)
    assert read_answer(shown[1]["content"], how) == example[1]


def test_a_generator_without_answers_has_no_examples(open_task: Callable[..., Any]) -> None:
    with expect_error(RolloutError, "no-example-answers", "boxnet", "rllm.env.env_args.examples"):
        open_task("boxnet", examples=1)
