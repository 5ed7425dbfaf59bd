"""Check of all rows with the run's renderer, before the first step: it shows each part of them, and their responses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from rllm.planning.plan import RunPlan
from rllm.planning.task_checks import name_of_source
from rllm.preferences.rows import read_preference
from rllm.rows.control_token_rows import ControlTokenRows
from rllm.rows.hidden_parts import TOOLS, Form, check_shown, form_of
from rllm.rows.problem import naming
from rllm.supervised.options import ExamplesParams
from rllm.supervised.rows import Conversation, read_row
from rllm.supervised.turns import make_turns
from rllm.tasks.options import QuestionParams
from rllm_core.contracts.renderer import Renderer
from rllm_core.data.types import Task


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
        if plan.examples is not None:
            _check_examples(plan.examples, tasks, renderer, source, are_compared=plan.preferences is not None)
        elif plan.environment is not None and isinstance(plan.environment.params, QuestionParams):
            _check_prompts(plan.environment.params, tasks, renderer, source, has_tools=plan.workflow.plugin.calls_tools)


def _check_examples(
    params: ExamplesParams, tasks: Iterable[Task], renderer: Renderer, source: str, *, are_compared: bool
) -> None:
    seen: set[frozenset[tuple[Form | None, Form | None]]] = set()
    control_tokens = ControlTokenRows(source, renderer)
    for task in (task for task in tasks if type(task) is Task):
        with naming(f"{source}, row {task.id!r}"):
            examples = [*read_preference(task.data).values()] if are_compared else [read_row(task.data)]
            for example in examples:
                if not isinstance(example, Conversation):
                    continue
                has_control_tokens = control_tokens.add(task.id, example.messages)
                forms = [form_of(each, has_tools=bool(example.tools)) for each in example.messages]
                pairs = frozenset(pairwise((None, *forms)))  # Templates reject some orders of roles.
                if pairs not in seen or has_control_tokens:  # A stop token in a response is an error.
                    seen.add(pairs)
                    make_turns(example, renderer, params)
    control_tokens.report()


def _check_prompts(
    params: QuestionParams, tasks: Iterable[Task], renderer: Renderer, source: str, *, has_tools: bool
) -> None:
    from rllm.tasks.question import Question

    environment, control_tokens = Question(params), ControlTokenRows(source, renderer)
    for task in tasks:
        prompt = environment.reset(task.data)
        control_tokens.add(task.id, [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)
        if not isinstance(prompt, str):
            with naming(f"{source}, task {task.id!r}"):
                check_shown(prompt, TOOLS if has_tools else (), renderer, "prompt[{}]".format)
    control_tokens.report()
