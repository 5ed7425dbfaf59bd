"""`reasoning_gym`: one question of a generator, one answer, the generator's score as the reward."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from rllm_core.contracts.environment import Environment, Outcome, Split
from rllm_core.data.messages import Message
from rllm_core.data.tasks import LazyTasks
from rllm_core.data.types import Task
from rllm_core.errors import RolloutError
from rllm_envs.reasoning_gym.options import EXAMPLES_FROM, ReasoningGymParams
from rllm_envs.reasoning_gym.processes import GeneratorFailedError, TooLongError, ask, find_config, find_system_prompt
from rllm_envs.seeds import SEEDS

How = Literal["auto", "tags", "response"]
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def read_answer(response: str, how: How) -> str | None:
    """The answer in a response, without white space around it; None where there is none.

    Tags are read as by ``reasoning_gym.utils.extract_answer``: the last pair counts.
    """
    tagged = TAGGED.findall(response) if how != "response" else []
    if not tagged and how == "tags":
        return None
    answer: str = tagged[-1] if tagged else response
    return answer.strip() or None


def format_answer(answer: str, how: How) -> str:
    """A response that gives `answer` in the shortest form that is read."""
    return f"<answer>{answer}</answer>" if how == "tags" else answer


def make_examples(params: ReasoningGymParams, config: dict[str, Any], seconds: float) -> tuple[tuple[str, str], ...]:
    """``params.examples`` pairs of a question and its answer; of a seed that neither split has.

    Raises:
        RolloutError: the generator keeps no answer to its entries.
        TooLongError: one takes longer than `seconds` to generate.
    """
    if not params.examples:
        return ()
    return _make_examples(params.generator, json.dumps(config), params.seed + EXAMPLES_FROM, params.examples, seconds)


@lru_cache(16)
def _make_examples(generator: str, config: str, seed: int, count: int, seconds: float) -> tuple[tuple[str, str], ...]:
    source = {"generator": generator, "config": json.loads(config), "seed": seed, "size": count}
    made = []
    for index in range(count):
        asked = {"source": source | {"index": index}, "seconds": seconds}
        question, answer = (ask({"ask": what, **asked}) for what in ("question", "answer"))
        if answer is None:
            raise RolloutError(
                "no-example-answers",
                f"{generator} stores no answers to its entries, so an entry cannot be shown as an example.",
                "Remove rllm.env.env_args.examples.",
            )
        made.append((question, str(answer)))
    return tuple(made)


SECONDS_TO_GENERATE = 300.0
SECONDS_TO_SCORE = 10.0
"""Time limit in seconds of CPU time, so that a busy machine does not change rewards."""


class ReasoningGym(Environment):
    """Asks an entry and ends with the first answer. Its reward is the generator's score, 0 to 1; 1 is correct.

    Task data is ``{generator, config, seed, size, index}``: what ``create_dataset(generator, seed=seed, size=size,
    **config)[index]`` makes. With the option `levels` it also contains ``level``.
    The entry is made at `reset`, and again wherever it is needed: JSON would change it.
    """

    def __init__(self, params: ReasoningGymParams) -> None:
        self._params = params
        self._task: dict[str, Any] = {}

    @classmethod
    def tasks(cls, split: Split, params: ReasoningGymParams) -> Sequence[Task]:
        """The tasks of a split; no entry is generated.

        Raises:
            ConfigError: the generator or its options are wrong.
        """
        size = params.train_size if split == "train" else params.val_size
        seed = params.seed if split == "train" else params.seed + SEEDS
        source = {"generator": params.generator, "seed": seed, "size": size}
        variants = [{"config": find_config(params, level), "level": level} for level in params.levels]
        variants = variants or [{"config": find_config(params)}]
        ids = [f"{params.generator}-{seed}-{index}" for index in range(size)]

        def make(index: int) -> Task:
            data = source | {"index": index} | variants[index % len(variants)]
            return Task(id=ids[index], data=data, data_source=params.generator)

        return LazyTasks(ids, make)

    def reset(self, task: Mapping[str, Any]) -> Sequence[Message]:
        """Generate the entry and return the prompt.

        Raises:
            RolloutError: the generator fails, takes longer than `SECONDS_TO_GENERATE`, or has no answers to show.
        """
        self._task = dict(task)
        try:
            examples = make_examples(self._params, task["config"], SECONDS_TO_GENERATE)
            question = self._ask("question", seconds=SECONDS_TO_GENERATE)
        except TooLongError as error:
            raise RolloutError(
                "generator-too-slow",
                f"{self._name} takes more than {SECONDS_TO_GENERATE:.0f} seconds to generate.",
                "Choose options that make it easier.",
            ) from error
        return [*self._introduction(examples), {"role": "user", "content": self._fill_template(question)}]

    def _introduction(self, examples: Sequence[tuple[str, str]]) -> Iterator[Message]:
        system = find_system_prompt(self._params)
        if system is not None:
            yield {"role": "system", "content": system}
        for question, answer in examples:
            yield {"role": "user", "content": self._fill_template(question)}
            yield {"role": "assistant", "content": format_answer(answer, self._params.answer)}

    def _fill_template(self, question: str) -> str:
        return self._params.template.replace("{question}", question)

    def step(self, action: str) -> Outcome:
        """Score the answer. One that the generator cannot read, or not in time, is worth 0 and counted."""
        answer = read_answer(action, self._params.answer)
        score = None if answer is None else self._score(answer)
        value = score if score is not None and math.isfinite(score) else 0.0
        metrics = {"answered": float(answer is not None), "unreadable": float(answer is not None and value != score)}
        return Outcome(reward=value, done=True, correct=value >= 1.0, metrics=metrics)

    def final_state(self) -> dict[str, Any]:
        """Return ``{"answer": text}``, the generator's correct answer, for rewards. None if it has none as text."""
        answer = self._ask("answer", seconds=SECONDS_TO_GENERATE)
        return {"answer": None if answer is None else str(answer)}

    def _score(self, answer: str) -> float | None:
        try:
            return float(self._ask("score", seconds=SECONDS_TO_SCORE, answer=answer))
        except (TooLongError, GeneratorFailedError):
            return None

    def _ask(self, what: str, **more: Any) -> Any:
        return ask({"ask": what, "source": self._task, **more}, place=self._name)

    @property
    def _name(self) -> str:
        task = self._task
        return f"Entry {task['index']} of {task['generator']!r} with seed {task['seed']}"
