"""The environments `question` and `tasks`, the dataset `jsonl`, and rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rllm_core.contracts.dataset import DatasetPlugin
from rllm_core.contracts.environment import EnvironmentPlugin
from rllm_core.contracts.reward import Reward, RewardPlugin
from rllm_core.errors import ConfigError, PluginError
from rllm_core.lazy import call_lazily, load_from
from rllm_core.plugins import hookimpl

if TYPE_CHECKING:
    from rllm.builtin.tasks.answers import AnswerParams
    from rllm.builtin.tasks.choice import ChoiceParams
    from rllm.builtin.tasks.judge_scores import JudgeParams
    from rllm.builtin.tasks.math_reward import MathParams

requires_api = 1

WAIT_FOR_A_WORKER = 600.0
"""Seconds that a comparison may wait for a process. Its own deadline starts when it gets one."""

WAIT_FOR_A_PLACE = 3600.0
"""Seconds that a call may wait for a free place. Requests and calls have their own deadlines, which start later."""
COLUMN_OPTION = "rllm.reward's `column`, for example 'rllm.reward=[{name: exact, column: COLUMN}]'"


def _math() -> Callable[[Any], Reward]:
    try:
        _check_math_verify()
    except ConfigError as error:
        raise PluginError(error.code, error.message, error.hint) from error
    reward: Callable[[Any], Reward] = load_from("rllm.builtin.tasks.math_reward", "Math")()
    return reward


def _check_math_verify() -> None:
    if find_spec("math_verify") is None:
        raise ConfigError(
            "missing-package",
            "Reward 'math' needs math-verify, which is not installed.",
            "Run: pip install 'rllm[math]'",
        )


def _of_function(name: str, module: str = "reward_file") -> Callable[..., Any]:
    """Return a function of a module that gets the option `function` instead of all options."""
    call = call_lazily(f"rllm.builtin.tasks.{module}", name)
    return lambda params, *more: call(params.function, *more)


def _check_answer(params: AnswerParams, data: Mapping[str, Any]) -> None:
    from rllm.builtin.tasks.answers import check_answers

    check_answers(data, params.column, COLUMN_OPTION)


def _check_math_answer(params: MathParams, data: Mapping[str, Any]) -> None:
    from rllm.builtin.tasks.answers import check_answers
    from rllm.builtin.tasks.math_reward import check_key

    check_answers(data, params.column, COLUMN_OPTION, check_key)


def _check_choice_answer(params: ChoiceParams, data: Mapping[str, Any]) -> None:
    from rllm.builtin.tasks.answers import check_answers
    from rllm.builtin.tasks.choice import read_letter

    check_answers(data, params.column, COLUMN_OPTION, lambda answer: read_letter(answer, params.letters))


def _check_judge_task(params: JudgeParams, data: Mapping[str, Any]) -> None:
    from rllm.builtin.tasks.answers import check_answers

    if params.asks_for_answer:
        check_answers(data, params.column, "`column` of reward judge, or a `prompt` without {answer}")


def _source_of_math(params: MathParams) -> dict[str, str]:
    from importlib.metadata import version

    return {"math-verify": version("math-verify")}


@hookimpl
def rllm_environments() -> Iterable[EnvironmentPlugin[Any]]:
    yield EnvironmentPlugin(
        name="question",
        summary="Ask the questions of a dataset, one answer each, rewarded by rllm.reward.",
        load_params=load_from("rllm.builtin.tasks.question", "QuestionParams"),
        load=load_from("rllm.builtin.tasks.question", "Question"),
        blocking=False,
        check=call_lazily("rllm.builtin.tasks.question", "check_question"),
        needs_keys={"rllm.reward": "[exact]"},
        check_task=call_lazily("rllm.builtin.tasks.question", "first_prompt"),
        first_prompt=call_lazily("rllm.builtin.tasks.question", "first_prompt"),
    )
    yield EnvironmentPlugin(
        name="tasks",
        summary="Task directories in Harbor's format, for agents in a sandbox, such as `tasks:./my-tasks`.",
        load_params=load_from("rllm.builtin.tasks.task_directories", "TaskDirectoriesParams"),
        load=load_from("rllm.builtin.tasks.task_directories", "TaskDirectories"),
        sources=call_lazily("rllm.builtin.tasks.task_directories", "list_files"),
        blocking=False,
        family_option="directory",
        defaults={"rllm.workflow.name": "agent"},
        needs_keys={"rllm.sandbox": "bwrap"},
    )


@hookimpl
def rllm_datasets() -> Iterable[DatasetPlugin[Any]]:
    yield DatasetPlugin(
        name="jsonl",
        summary="Tasks from a file, one JSON object per line.",
        load_params=load_from("rllm.builtin.tasks.task_file", "TaskFileParams"),
        load=load_from("rllm.builtin.tasks.task_file", "read_tasks"),
        suffixes=frozenset({".jsonl"}),
    )


@hookimpl
def rllm_rewards() -> Iterable[RewardPlugin[Any]]:
    yield RewardPlugin(
        name="exact",
        summary="1 if the whole response is the answer, up to case, white space and a final full stop.",
        load_params=load_from("rllm.builtin.tasks.exact", "ExactParams"),
        load=load_from("rllm.builtin.tasks.exact", "Exact"),
        blocking=False,
        check_task=_check_answer,
    )
    yield RewardPlugin(
        name="math",
        summary="1 if the final answer of the response is mathematically equal to the right one.",
        load_params=load_from("rllm.builtin.tasks.math_reward", "MathParams"),
        load=_math,
        check=lambda params: _check_math_verify(),
        sources=_source_of_math,
        timeout=WAIT_FOR_A_WORKER,
        check_task=_check_math_answer,
    )
    yield RewardPlugin(
        name="choice",
        summary="1 if the final answer of the response is the right option.",
        load_params=load_from("rllm.builtin.tasks.choice", "ChoiceParams"),
        load=load_from("rllm.builtin.tasks.choice", "Choice"),
        blocking=False,
        check_task=_check_choice_answer,
    )
    yield RewardPlugin(
        name="regex",
        summary="1 if the text that a regular expression finds in the response is the answer.",
        load_params=load_from("rllm.builtin.tasks.patterns", "RegexParams"),
        load=load_from("rllm.builtin.tasks.patterns", "Regex"),
        timeout=WAIT_FOR_A_WORKER,
        check_task=_check_answer,
    )
    yield RewardPlugin(
        name="format",
        summary="1 if the whole response matches a regular expression.",
        load_params=load_from("rllm.builtin.tasks.patterns", "FormatParams"),
        load=load_from("rllm.builtin.tasks.patterns", "Format"),
        timeout=WAIT_FOR_A_WORKER,
    )
    yield RewardPlugin(
        name="length",
        summary="0 at the target number of tokens, down to -1 further off.",
        load_params=load_from("rllm.builtin.tasks.length", "LengthParams"),
        load=load_from("rllm.builtin.tasks.length", "Length"),
        blocking=False,
    )
    yield RewardPlugin(
        name="python",
        summary="A function in a file: ours, or one written for TRL or verl.",
        load_params=load_from("rllm.builtin.tasks.python_reward", "PythonParams"),
        load=load_from("rllm.builtin.tasks.python_reward", "python_reward"),
        blocking=False,
        timeout=WAIT_FOR_A_PLACE,
        check=_of_function("check_function"),
        sources=_of_function("read_source", "function_file"),
        scope=_of_function("find_scope"),
        family_option="function",
        check_task=_of_function("check_columns"),
    )
    yield RewardPlugin(
        name="judge",
        summary="Score from 0 to 1 by a judge model at an OpenAI-compatible API.",
        load_params=load_from("rllm.builtin.tasks.judge_scores", "JudgeParams"),
        load=load_from("rllm.builtin.tasks.judge", "Judge"),
        check=call_lazily("rllm.builtin.tasks.judge_scores", "check_judge"),
        blocking=False,
        timeout=WAIT_FOR_A_PLACE,
        check_task=_check_judge_task,
    )
