"""Check of all rows with the run's renderer, before the first step: it shows each part of them, and their responses.

Rows with control tokens of the model in their text are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from rllm.planning.plan import RunPlan
from rllm.planning.row_objective import RowObjective
from rllm.planning.task_checks import name_of_source
from rllm.rows.example import Conversation
from rllm.rows.hidden_parts import TOOLS, Form, check_visible_parts, form_of
from rllm.rows.problem import naming
from rllm_core.contracts.renderer import Renderer
from rllm_core.data.messages import Message
from rllm_core.data.types import Task
from rllm_core.errors import ConfigError
from rllm_core.notices import warn_once
from rllm_core.rollout.control_tokens import REMEDY, ControlTokens


def check_rendering(plan: RunPlan, renderer: Renderer, train_tasks: Sequence[Task], val_tasks: Sequence[Task]) -> None:
    """Check the rows of both splits. Each form of conversation is rendered once, so 100,000 rows take seconds.

    Raises:
        ConfigError: a row has a part that the model would not see, or a response that cannot be trained.
    """
    splits = ((plan.train_dataset, train_tasks, "train"), (plan.val_dataset, val_tasks, "val"))
    for dataset, tasks, split in splits:
        if dataset is None and not isinstance(tasks, list):
            continue  # A generator makes its prompts itself.
        source = name_of_source(dataset, f"data.{split}_dataset")
        if plan.rows is not None:
            _check_examples(plan.rows, tasks, renderer, source)
        elif plan.environment is not None and plan.environment.plugin.first_prompt is not None:
            prompt_of = partial(plan.environment.plugin.first_prompt, plan.environment.params)
            _check_prompts(prompt_of, tasks, renderer, source, has_tools=plan.workflow.plugin.calls_tools)


def _check_examples(rows: RowObjective, tasks: Iterable[Task], renderer: Renderer, source: str) -> None:
    seen: set[frozenset[tuple[Form | None, Form | None]]] = set()
    control_tokens = ControlTokenRows(source, renderer)
    for task in (task for task in tasks if type(task) is Task):
        with naming(f"{source}, row {task.id!r}"):
            for example in rows.read(task.data):
                if not isinstance(example, Conversation):
                    continue
                has_control_tokens = control_tokens.add(task.id, example.messages)
                forms = [form_of(each, has_tools=bool(example.tools)) for each in example.messages]
                pairs = frozenset(pairwise((None, *forms)))  # Templates reject some orders of roles.
                if pairs not in seen or has_control_tokens:  # A stop token in a response is an error.
                    seen.add(pairs)
                    rows.check_rendered(example, renderer)
    control_tokens.report()


def _check_prompts(
    prompt_of: Callable[[Mapping[str, Any]], str | Sequence[Message]],
    tasks: Iterable[Task],
    renderer: Renderer,
    source: str,
    *,
    has_tools: bool,
) -> None:
    control_tokens = ControlTokenRows(source, renderer)
    for task in tasks:
        prompt = prompt_of(task.data)
        control_tokens.add(task.id, [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)
        if not isinstance(prompt, str):
            with naming(f"{source}, task {task.id!r}"):
                check_visible_parts(prompt, TOOLS if has_tools else (), renderer, "prompt[{}]".format)
    control_tokens.report()


class ControlTokenRows:
    """Count of rows with control tokens in their text, such as ``<|im_end|>``, and the first of these rows."""

    def __init__(self, source: str, renderer: Renderer) -> None:
        """Create a count without rows.

        Args:
            source: the file or the dataset, for messages.
            renderer: the renderer of the run. Renderers of plugins may have no `ControlTokens`. Then no row is counted.
        """
        found = getattr(renderer, "control_tokens", None)
        self._control_tokens = found if isinstance(found, ControlTokens) else None
        self._source = source
        self._rows: dict[str, str] = {}

    def add(self, row: str, messages: Sequence[Message]) -> bool:
        """Count a row, once for all its conversations. Return True if it has control tokens."""
        found = self._control_tokens.find(messages) if self._control_tokens is not None else []
        if found:
            self._rows.setdefault(row, found[0])
        return bool(found)

    def report(self) -> None:
        """Print a warning if rows have control tokens.

        Raises:
            ConfigError: rows have control tokens, and the renderer's option `control_tokens` is ``error``.
        """
        if self._control_tokens is None or not self._rows:
            return
        row, token = next(iter(self._rows.items()))
        count = f"{len(self._rows):,} rows have" if len(self._rows) > 1 else "1 row has"
        problem = f"{self._source}: {count} control tokens of the model in the text, such as {token!r} in row {row!r}."
        if self._control_tokens.in_text == "error":
            raise ConfigError("bad-row", problem, REMEDY)
        outcome = "are plain text" if self._control_tokens.in_text == "plain" else "keep their meaning"
        warn_once(f"{problem} They {outcome} (rllm.renderer.control_tokens={self._control_tokens.in_text}).")
