"""Tasks, their entries and what an answer earns."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rllm_core.data.tasks import LazyTasks
from rllm_core.errors import RolloutError
from rllm_envs.reasoning_gym import environment
from rllm_envs.reasoning_gym.environment import ReasoningGym
from rllm_envs.reasoning_gym.generators import EVALUATE, PARSE
from rllm_envs.reasoning_gym.options import ReasoningGymParams
from rllm_envs.reasoning_gym.processes import Process

FICKLE = ("codeio", "isomorphic_strings", "knight_swap", "list_functions", "pool_matrix", "ransom_note", "word_ladder")
"""Generators that draw from global random numbers, or go through sets."""


def _questions(process: Process, generator: str, order: list[int]) -> dict[int, str]:
    source = {"generator": generator, "config": {}, "seed": 1, "size": 8}
    asked = {"ask": "question", "seconds": 60.0}
    return {index: process.ask({**asked, "source": source | {"index": index}}) for index in order}


@pytest.mark.long
def test_entries_do_not_depend_on_process_or_order() -> None:
    one, other = Process(), Process()
    for generator in FICKLE:
        forth, back = _questions(one, generator, [0, 1, 2]), _questions(other, generator, [2, 1, 0])
        assert forth == back, generator
    one.close()
    other.close()


@pytest.mark.long
def test_tasks_are_made_when_a_rollout_starts() -> None:
    tasks = ReasoningGym.tasks("train", ReasoningGymParams(generator="knight_swap", train_size=100_000))
    assert isinstance(tasks, LazyTasks)
    assert len(tasks) == 100_000
    assert tasks[99_999].id == "knight_swap-0-99999"


def test_task_data_makes_its_entry_again() -> None:
    params = ReasoningGymParams(generator="chain_sum", config={"max_terms": 3}, train_size=5, seed=7)
    task = ReasoningGym.tasks("train", params)[2]
    assert task.data == {"generator": "chain_sum", "config": {"max_terms": 3}, "seed": 7, "size": 5, "index": 2}
    assert json.loads(json.dumps(task.data)) == task.data
    assert task.data_source == "chain_sum"


def test_the_splits_share_no_seed() -> None:
    params = ReasoningGymParams(generator="chain_sum", seed=2**30 - 1, train_size=10**6, val_size=10**6)
    train, val = (ReasoningGym.tasks(split, params)[0].data["seed"] for split in ("train", "val"))
    assert train + params.train_size <= val
    assert val + params.val_size < 2**32, "numpy takes no larger seed"


@pytest.mark.long
def test_score_is_the_reward_and_1_is_correct(open_task: Callable[..., Any]) -> None:
    world, _ = open_task("chain_sum")
    answer = world.final_state()["answer"]
    right, wordy, wrong = world.step(answer), world.step(f"It is {answer}"), world.step("no idea")
    assert (right.reward, right.correct) == (1.0, True)
    assert (wordy.reward, wordy.correct) == (len(answer) / len(f"It is {answer}"), False)
    assert (wrong.reward, wrong.correct) == (0.0, False)


@pytest.mark.parametrize(
    ("generator", "options", "words", "metrics"),
    [
        ("prime_factorization", {}, "no number", {"answered": 1.0, "unreadable": 1.0}),
        ("countdown", {"answer": "tags"}, "it is 7", {"answered": 0.0, "unreadable": 0.0}),
    ],
)
def test_unreadable_and_missing_answers_are_wrong_and_counted(
    open_task: Callable[..., Any], generator: str, options: dict[str, Any], words: str, metrics: dict[str, float]
) -> None:
    world, _ = open_task(generator, **options)
    outcome = world.step(words)
    assert (outcome.reward, outcome.correct, outcome.metrics) == (0.0, False, metrics)


@pytest.mark.long
def test_slow_answer_is_wrong_and_stops_no_other(
    open_task: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "SECONDS_TO_SCORE", 0.5)
    worlds = [open_task("simple_integration", index)[0] for index in range(8)]
    answers = ["9**9**9**9 * X", *(world.final_state()["answer"] for world in worlds[1:])]
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda world, answer: world.step(answer), worlds, answers))
    assert [outcome.correct for outcome in outcomes] == [False] + [True] * 7
    assert outcomes[0].metrics["unreadable"] == 1.0


def test_slow_entry_fails_the_rollout(open_task: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "SECONDS_TO_GENERATE", 0.001)
    with pytest.raises(RolloutError, match=r"Entry 6 of 'zebra_puzzles' with seed 0 takes more than"):
        open_task("zebra_puzzles", 6)


@pytest.mark.parametrize(
    "generator",
    [
        *(pytest.param(each, marks=pytest.mark.long) for each in ("binary_matrix", "string_insertion")),
        *("countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"),
    ],
)
def test_an_answer_is_not_run_as_python(generator: str, open_task: Callable[..., Any], tmp_path: Path) -> None:
    world, _ = open_task(generator)
    written = tmp_path / "written"
    spelled = "+".join(f"chr({ord(letter)})" for letter in str(written))
    touch = f"[__import__('pathlib').Path({str(written)!r}).touch()]"
    for words in (touch, f"open({str(written)!r}, 'w')", f"open({spelled}, chr(119))", "().__class__"):
        assert world.step(words).reward == 0.0
    assert not written.exists()


def test_every_scorer_that_evaluates_is_known() -> None:
    from reasoning_gym.factory import DATASETS

    scorers = {name: inspect.getsource(dataset.score_answer) for name, (dataset, _) in DATASETS.items()}
    evaluate = {name for name, source in scorers.items() if "eval(answer" in source}
    assert evaluate == {name.rpartition(".")[2] for name in EVALUATE}
    assert {name for name, source in scorers.items() if "parse_expr(answer" in source} == PARSE
    # `number_sorting` evaluates its own answer.
    run = {name for name, source in scorers.items() if re.search(r"\beval\(|\bexec\(|sympify", source)}
    assert run == evaluate | {"number_sorting"}


def test_lists_are_still_read(open_task: Callable[..., Any]) -> None:
    world, _ = open_task("spiral_matrix")
    assert world.step(str(world.final_state()["answer"].split())).reward == 0.1


@pytest.mark.smoke
def test_a_dead_process_is_replaced() -> None:
    process = Process()
    first = _questions(process, "chain_sum", [0])
    assert process._process is not None
    process._process._process.kill()
    process._process._process.wait()
    with pytest.raises(RolloutError, match="ended with -9"):
        _questions(process, "chain_sum", [0])
    assert _questions(process, "chain_sum", [0]) == first
    process.close()


@pytest.mark.long
def test_a_process_ends_with_its_owner() -> None:
    process = Process()
    _questions(process, "chain_sum", [0])
    assert process._process is not None
    child = process._process._process
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(60) == 0
    process.close()
