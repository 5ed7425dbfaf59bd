"""What contracts tell authors of datasets, rewards, samplers and teachers with one mistake each."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import Field

from rllm_core.contracts import NoParams, Params, Rollout, Sampler, SamplerSetup, Score, TaskResult, TeacherSetup
from rllm_core.data.batch import TokenBatch
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_plugin_kit import DatasetContract, RewardContract, TeacherContract

from .conftest import PROCESS, make_plugin, vary


class Options(Params):
    number: int = Field(default=5, description="How many.")
    path: str = Field(default="", description="A file.")


def numbers(params: Options) -> list[Task]:
    """Numbers."""
    if params.path and not Path(params.path).exists():
        raise ConfigError("made-up", f"{params.path} is not there.", "Fix `path`.")
    return [Task(id=str(number), data={"number": number}) for number in range(params.number)]


class Lazy(Sequence[Task]):
    """A thousand million tasks."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: Any) -> Any:
        return Task(id=str(index), data={"number": index})


def drawn(params: Options) -> list[Task]:
    return random.sample(numbers(params), 5)


def opens_the_file(params: Options) -> list[Task]:
    if params.path:
        Path(params.path).read_text()
    return numbers(params)


def seeds_everybody(params: Options) -> list[Task]:
    random.seed(0)
    return drawn(params)


def moves(params: Options) -> list[Task]:
    os.chdir("/")
    return numbers(params)


BAD = ({"path": "not-there"},)


SHARED = {"number": 0}


class Exact:
    """1 for the answer itself."""

    def __init__(self, params: NoParams) -> None:
        pass

    async def __call__(self, rollout: Rollout) -> Any:
        await asyncio.sleep(0)
        return self.score(rollout)

    def score(self, rollout: Rollout) -> Any:
        correct = rollout.response.content.strip() == str(rollout.data["answer"])
        return Score(value=float(correct), correct=correct, components={"exact": float(correct)})


class KeepsTheRollout(Exact):
    async def __call__(self, rollout: Rollout) -> Any:
        self.rollout = rollout
        await asyncio.sleep(0)
        return float(len(self.rollout.response.text))


def scoring(score: Callable[[Rollout], Any]) -> type[Exact]:
    """Return a reward with this score of a rollout."""
    return vary(Exact, score=lambda self, rollout: score(rollout))


def is_exact(rollout: Rollout) -> float:
    return float(rollout.response.content == rollout.data["answer"])


NUMBERS = itertools.count()


def test_needs_missing_from_the_data_are_reported(complaint: Any) -> None:
    record = make_plugin("reward", Exact, needs=frozenset({"answer", "tests"}))
    assert "needs tests of" in complaint(RewardContract, record, "data_contains_the_declared_needs")


class Counting(Sampler):
    """Goes over the tasks in order, one further after each solved task."""

    def __init__(self, params: NoParams, setup: SamplerSetup) -> None:
        self.setup = setup
        self.first = 0

    def draw(self, batch: int) -> Sequence[int]:
        tasks = len(self.setup.tasks)
        return [(self.first + batch + place) % tasks for place in range(self.setup.batch_size)]

    def observe(self, results: Sequence[TaskResult]) -> None:
        self.first += sum(result.pass_rate == 1 for result in results)

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["first"]


def drawing(draw: Callable[[Counting], Sequence[int]]) -> type[Counting]:
    """Return a sampler that draws these positions."""
    return vary(Counting, draw=lambda self, batch: draw(self))


USABLE = "batch_has_known_tasks_without_duplicates"


RESUMED = "a_resumed_run_continues_exactly"


class ByToken:
    """Gives each token id its own log-prob."""

    def __init__(self, params: NoParams, setup: TeacherSetup) -> None:
        self.calls = 0

    async def logprobs(self, batch: TokenBatch) -> NDArray[np.float32]:
        self.calls += 1
        return self.change(batch, -1 - batch.tokens.astype(np.float32))

    def change(self, batch: TokenBatch, logprobs: Any) -> Any:
        return logprobs


def teaching(change: Callable[[ByToken, TokenBatch, Any], Any]) -> type[ByToken]:
    """Return a teacher that changes its log-probs."""
    return vary(ByToken, change=change)


class ChangesTokens(ByToken):
    def change(self, batch: TokenBatch, logprobs: Any) -> Any:
        batch.tokens[:] = 0
        return logprobs


class Likely(ByToken):
    """Has ten tokens, and the distribution of `ByToken` at each position."""

    async def top_logprobs(self, batch: TokenBatch, k: int | None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        ids = np.tile(np.arange(10, dtype=np.int32)[:k], (self.count(batch), 1))
        return self.change_top(ids, -1 - ids.astype(np.float32))

    def count(self, batch: TokenBatch) -> int:
        return int(batch.loss_mask.sum())

    def change_top(self, ids: Any, logprobs: Any) -> Any:
        return ids, logprobs


def of_top(change: Callable[[Any, Any], Any]) -> type[Likely]:
    """Return a teacher that changes its likeliest tokens and their log-probs."""
    return vary(Likely, change_top=lambda self, ids, logprobs: change(ids, logprobs))


LIKELIEST = "top_tokens_match_the_sampled_logprobs"


SCORES = "each_sampled_token_has_a_finite_logprob"


ATTRIBUTES: dict[str, dict[str, Any]] = {
    "dataset": {"bad_options": BAD},
    "reward": {"right": ("42",), "wrong": ("41",)},
}
MISTAKES: dict[str, list[tuple[Any, str, str]]] = {
    "dataset": [
        (make_plugin("dataset", made, load_params=lambda: Options), test, said)
        for made, test, said in [
            (lambda params: [], "it_has_tasks", "has no task"),
            (drawn, "tasks_are_the_same_every_time", "returns different tasks"),
            (lambda params: iter(numbers(params)), "it_has_tasks", "has tasks that"),
            (lambda params: [task.data for task in numbers(params)], "it_has_tasks", "'number'"),
            (lambda params: [Task(id="task", data={"n": n}) for n in range(2)], "tasks_have_different_ids", "'task'"),
            (lambda params: [Task(id="")], "tasks_have_different_ids", "has a task"),
            (lambda params: [Task(id="task", data={"numbers": (1, 2)})], "task_data_is_json", "'task'"),
            (lambda params: [Task(id="task", data={"number": Path()})], "task_data_is_json", "'task'"),
            (lambda params: [Task(id=name, data=SHARED) for name in "ab"], "tasks_do", "one mapping"),
            (opens_the_file, "bad_options_are_rejected_with_a_reason", "FileNotFoundError"),
            (lambda params: numbers(Options()), "bad_options_are_rejected_with_a_reason", "'not-there'"),
            (seeds_everybody, PROCESS, "leaves Python's random"),
            (moves, PROCESS, "leaves the working"),
            (lambda params: 1 / 0, "it_has_tasks", "ZeroDivisionError"),
        ]
    ],
    "reward": [
        (scoring(lambda rollout: float(len(rollout.data["question"]))), "only_declared_needs_are_read", "'question'"),
        (scoring(lambda rollout: float(rollout.response.content)), "any_response_is_scored", "fails on the"),
        (scoring(lambda rollout: -float("inf")), "any_response_is_scored", "gives value the"),
        (scoring(lambda rollout: Score(value=None)), "any_response_is_scored", "gives value the"),
        (scoring(lambda rollout: {"value": 1.0, "reason": "it is right"}), "any_response", "returns reason, which"),
        (scoring(lambda rollout: 1.0 - is_exact(rollout)), "right_responses_get_higher_rewards", "'42'"),
        (scoring(lambda rollout: float(next(NUMBERS))), "same_rollout_gets_same_reward", "scores the same"),
        (KeepsTheRollout, "concurrent_scores_do_not_affect_each_other", "when others are"),
        (
            scoring(lambda rollout: float(rollout.response.content == rollout.data.pop("answer"))),  # type: ignore[attr-defined]
            "it_does_not_change_the_rollout",
            "changes the rollout",
        ),
        (
            scoring(lambda rollout: os.environ.update(MINE="scored") or 1.0),  # type: ignore[func-returns-value]
            PROCESS,
            "leaves environment variables",
        ),
    ],
    "sampler": [
        (drawing(lambda self: [0] * self.setup.batch_size), USABLE, "a task twice"),
        (drawing(lambda self: range(len(self.setup.tasks))), USABLE, "`setup.batch_size`"),
        (drawing(lambda self: []), USABLE, "drew 0 tasks"),
        (drawing(lambda self: [len(self.setup.tasks)]), USABLE, "drew position 24"),
        (vary(Counting, load_state_dict=lambda self, state: None), RESUMED, "a different state"),
        (
            vary(Counting, state_dict=lambda self: {}, load_state_dict=lambda self, state: None),
            RESUMED,
            "draws other tasks",
        ),
        (vary(Counting, state_dict=lambda self: {"first": {self.first}}), RESUMED, "not JSON"),
        (drawing(lambda self: [next(NUMBERS) % len(self.setup.tasks)]), "same_results", "never in its class"),
        (drawing(lambda self: [random.randrange(len(self.setup.tasks))]), "global_random", "default_rng"),
        (vary(Counting, observe=lambda self, results: results[0].position), "step_without_results_works", "IndexError"),
        (vary(Counting, metrics=lambda self: {"level": "high"}), "metrics_are_numbers", "level='high'"),
        (lambda params, setup: object(), USABLE, "rllm_core.contracts.Sampler"),
    ],
    "teacher": [
        (teaching(lambda self, batch, logprobs: logprobs[batch.loss_mask]), SCORES, "shape"),
        (teaching(lambda self, batch, logprobs: logprobs + np.float32(np.nan)), SCORES, "nan"),
        (teaching(lambda self, batch, logprobs: np.full_like(logprobs, 0.5)), SCORES, "0.5"),
        (teaching(lambda self, batch, logprobs: logprobs - self.calls), "same_batch_has_same_logprobs", "same batch"),
        (
            teaching(lambda self, batch, logprobs: logprobs - np.float32(batch.n_rows)),
            "logprob_does_not_depend",
            "row_offsets",
        ),
        (ChangesTokens, PROCESS, "tokens"),
        (vary(Likely, count=lambda self, batch: len(batch.tokens)), LIKELIEST, "shape"),
        (of_top(lambda ids, logprobs: (ids // 2, logprobs)), LIKELIEST, "different tokens"),
        (of_top(lambda ids, logprobs: (ids, np.zeros_like(logprobs))), LIKELIEST, "sum 5"),
        (of_top(lambda ids, logprobs: (ids + 40, logprobs)), LIKELIEST, "do not match"),
        (teaching(lambda self, batch, logprobs: logprobs + 0 * np.float32(random.random())), PROCESS, "random"),
    ],
}


def test_a_lazy_dataset_has_no_complaints(complaints: Any) -> None:
    plugin = make_plugin("dataset", lambda params: Lazy() if numbers(params) else [], load_params=lambda: Options)
    assert complaints(DatasetContract, plugin, **ATTRIBUTES["dataset"]) == {}


def test_a_teacher_with_distributions_has_no_complaints(complaints: Any) -> None:
    assert complaints(TeacherContract, make_plugin("teacher", Likely)) == {}


@pytest.mark.parametrize(
    ("kind", "made", "test", "said"), [(kind, *row) for kind, rows in MISTAKES.items() for row in rows]
)
def test_contract_reports_the_mistake(kind: str, made: Any, test: str, said: str, reported: Any) -> None:
    assert said in reported(kind, made, test, **ATTRIBUTES.get(kind, {}))
