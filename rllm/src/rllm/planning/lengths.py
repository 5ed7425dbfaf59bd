"""Lengths of a run's rows, stored rollouts or prompts, measured on a sample before the first step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rllm.planning.plan import RunPlan
from rllm.planning.task_checks import name_of_source
from rllm.rows.example import Conversation, HasExamples, PlainText
from rllm.rows.row_limit import RowFitter, RowLimit, row_length
from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message, read_text
from rllm_core.data.types import Episode, Task
from rllm_core.errors import ConfigError

SAMPLE = 1000
"""Maximum number of rows to measure in a data source. Tokenizing all rows of a large file takes minutes."""
CHARACTERS = 1_000_000
"""Maximum number of characters to render, about a second. With longer rows, fewer rows are measured."""
STORED = 100
"""Maximum number of tasks with stored rollouts to measure. A task has several rollouts."""


@dataclass(frozen=True)
class Model:
    """The parts of a model that decide the lengths of rows. They need no weights."""

    renderer: Renderer
    max_context: int
    """Maximum number of tokens in a row, see `RolloutEngine.max_context`."""


@dataclass(frozen=True)
class Lengths:
    """Lengths in a data source."""

    of: str
    """The measured rows or prompts and their source, such as ``5 rows of train.jsonl``."""
    unit: str
    """``tokens``, or ``characters`` if the model's tokenizer is not available before the run."""
    measured: Mapping[str, int]
    """Length of each measured row or prompt by its id."""
    limit: str = ""
    """The limit of the lengths. Empty if it is not available before the run."""
    effects: Mapping[str, int] = field(default_factory=dict)
    """Number of measured rows or prompts by the effect of the limit, such as ``cut off``. Without zeros."""

    def lines(self) -> Iterator[str]:
        """Yield the lines to print."""
        median, most = self._percentiles()
        longest = self._longest()
        yield (
            f"Lengths of {self.of}: median {median:,} {self.unit}, 95 % at most {most:,}, longest "
            f"{self.measured[longest]:,} ({longest!r})"
        )
        if self.limit:
            effects = ", ".join(f"{count:,} {effect}" for effect, count in self.effects.items())
            yield f"  limit: {self.limit}. {effects or 'None is longer'}"

    def values(self) -> dict[str, Any]:
        """Return the statistics for JSON."""
        median, most = self._percentiles()
        return {
            "lengths_of": self.of,
            "unit": self.unit,
            "median": median,
            "percentile_95": most,
            "longest": self.measured[self._longest()],
            "longest_id": self._longest(),
            "limit": self.limit,
            "effects": dict(self.effects),
        }

    def _percentiles(self) -> tuple[int, int]:
        """Return the median and the 95th percentile."""
        median, most = np.percentile(list(self.measured.values()), (50, 95), method="higher").tolist()
        return median, most

    def _longest(self) -> str:
        """Return the id of the longest row."""
        return max(self.measured, key=self.measured.__getitem__)


def measure_lengths(
    plan: RunPlan, train_tasks: Sequence[Task] | None, val_tasks: Sequence[Task] | None, model: Model | None
) -> list[Lengths]:
    """Return the lengths in each data source of a run, except sources whose prompts are not available before the run.

    Args:
        plan: the run's plan.
        train_tasks: training tasks. None if they were not read yet.
        val_tasks: validation tasks, or None.
        model: the model. If it is None, characters of messages are counted instead of tokens.

    Raises:
        ConfigError: a measured row cannot be rendered, or is too long and ``long_rows`` is ``error``. Or all measured
            rows of a source are dropped.
    """
    splits = ((plan.train_dataset, train_tasks), (plan.val_dataset, val_tasks))
    found = [_measure(plan, name_of_source(data, ""), tasks, model) for data, tasks in splits if data and tasks]
    return [lengths for lengths in found if lengths.measured]


def _measure(plan: RunPlan, source: str, tasks: Sequence[Task], model: Model | None) -> Lengths:
    is_stored = isinstance(tasks[0], HasExamples)
    sample = _sample(tasks, STORED if is_stored else SAMPLE)
    number = f"{len(sample):,} evenly spaced" if len(sample) < len(tasks) else f"{len(sample):,}"
    of = f"{number} row{'' if len(tasks) == 1 else 's'} of {source}"
    if is_stored:
        renderer = None if model is None else model.renderer
        stored = (episode for task in sample if isinstance(task, HasExamples) for episode in task.examples(renderer))
        rollouts = {episode.id: episode for episode in stored}
        return _rows(plan, f"stored rollouts of {number} tasks of {source}", rollouts, model)
    if plan.rows is None:
        return _prompts(plan, of, sample, model)
    if model is None:
        characters = {task.id: sum(map(_characters, plan.rows.read(task.data))) for task in sample}
        return Lengths(of, "characters", characters)
    rows = {task.id: row for task in sample for row in plan.rows.make_episodes(task, model.renderer)}
    return _rows(plan, of, rows, model)


def _rows(plan: RunPlan, of: str, rows: Mapping[str, Episode], model: Model | None) -> Lengths:
    measured = {name: max(map(row_length, row.trajectories), default=0) for name, row in rows.items()}
    if model is None:
        return Lengths(of, "tokens", measured)
    if plan.rows is None:
        limit = RowLimit(model.max_context, is_context=True, long_rows="drop")
    else:
        limit = RowLimit.lowest(plan.rows.params, model.max_context)
    fitter = RowFitter(limit)
    for episode in rows.values():
        fitter.fit(episode, together=plan.rows is not None and plan.rows.keeps_together)
    if len(fitter.dropped) == len(rows):
        raise ConfigError(
            "row-too-long", f"All measured rows are dropped ({of}), because of {limit.text}.", f"{limit.remedy}."
        )
    counts = {
        "are longer and cut off": len(fitter.cut),
        "are longer and dropped": len(fitter.dropped),
        "have no trained token and are dropped": len(fitter.empty),
    }
    return Lengths(of, "tokens", measured, limit.text, {effect: count for effect, count in counts.items() if count})


def _prompts(plan: RunPlan, of: str, tasks: Sequence[Task], model: Model | None) -> Lengths:
    of = f"first prompts{' without tools' if plan.workflow.plugin.calls_tools else ''}, {of}"
    if model is None:
        characters = _of_first_prompts(plan, tasks, lambda prompt: sum(len(read_text(each)) for each in prompt))
        return Lengths(of, "characters", characters)
    renderer = model.renderer
    tokens = _of_first_prompts(plan, tasks, lambda prompt: len(renderer.prompt(prompt)))
    most, context = plan.config.data.max_prompt_length, model.max_context
    longer = sum(length > most or length >= context for length in tokens.values())
    limit = f"data.max_prompt_length={most}" if most < context else f"the run's longest context ({context:,} tokens)"
    return Lengths(of, "tokens", tokens, limit, {"are too long to get a response": longer} if longer else {})


def _of_first_prompts(
    plan: RunPlan, tasks: Sequence[Task], measure: Callable[[Sequence[Message]], int]
) -> dict[str, int]:
    """Return the length of each task's first prompt. Empty if the environment may wait before it returns a prompt."""
    if plan.environment is None or plan.environment.plugin.blocking or not plan.workflow.plugin.needs_environment:
        return {}
    make_environment, make_agent = plan.environment.registered.load(), plan.agent.registered.load()
    found: dict[str, int] = {}
    for task in tasks:
        try:
            observation = make_environment(plan.environment.params).reset(copy.deepcopy(dict(task.data)))
            if isinstance(observation, Coroutine):
                observation.close()
                return {}
            found[task.id] = measure(make_agent(plan.agent.params).observe(observation))
        except Exception:  # noqa: BLE001  (external code, whose errors the task's rollouts report)
            continue
    return found


def _sample(tasks: Sequence[Task], most: int) -> list[Task]:
    """Return at most `most` evenly spaced tasks, and fewer if their text is long."""
    sample = _spread(tasks, most)
    return _spread(sample, len(sample) * CHARACTERS // max(1, sum(_cost(task.data) for task in sample)))


def _spread(tasks: Sequence[Task], most: int) -> list[Task]:
    count = max(1, min(len(tasks), most))
    return [tasks[place * len(tasks) // count] for place in range(count)]


def _cost(value: Any) -> int:
    """Return the number of characters to render for a value. A turn of a conversation renders all turns before it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_cost, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_cost, value)) * max(1, len(value) // 2)
    return 1


def _characters(example: Conversation | PlainText) -> int:
    if isinstance(example, PlainText):
        return len(example.prompt) + len(example.completion)
    return sum(len(read_text(message)) for message in example.messages)
