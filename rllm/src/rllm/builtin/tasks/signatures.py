"""The four signatures of reward functions. The names of the parameters identify them.

======== =================================================== =========================================
native   ``score(rollout)``                                   returns a `Score`, a number or a mapping
group    ``score(rollouts)``                                  returns a list of results as above
TRL      ``score(prompts, completions, **columns)``           returns a list of numbers and None
verl     ``score(data_source, solution_str, ground_truth,     returns a number, or a mapping with
         extra_info)``                                        ``score``
======== =================================================== =========================================
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import SimpleNamespace
from typing import Any, Literal

from rllm.builtin.tasks.question import prompt_column
from rllm_core.contracts.reward import Rollout

Style = Literal["native", "group", "trl", "verl"]
OF_VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
OF_TRL = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
COMPARING = frozenset({"group", "trl"})
"""Signatures of functions that take all rollouts of a task."""


class SignatureError(Exception):
    """A function does not fit the data or its signature. The message begins with a verb, after the function's name."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters of a reward function."""

    names: Sequence[str]
    required: Sequence[str]
    takes_any: bool
    """True if it has ``**columns``."""

    @classmethod
    def of_function(cls, function: Callable[..., Any]) -> Parameters:
        """Return the parameters of a function.

        Raises:
            TypeError, ValueError: it has no signature.
        """
        every = list(inspect.signature(function).parameters.values())
        named = [each for each in every if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        return cls(
            names=[each.name for each in named],
            required=[each.name for each in named if each.default is each.empty],
            takes_any=any(each.kind is each.VAR_KEYWORD for each in every),
        )

    @classmethod
    def of_source(cls, arguments: ast.arguments) -> Parameters:
        """Return the parameters of a parsed function, without running it."""
        positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        keywords = [each.arg for each in arguments.kwonlyargs]
        defaults = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        required = positional[: len(positional) - len(arguments.defaults)]
        return cls(
            names=[*positional, *keywords],
            required=[*required, *(each.arg for each, default in defaults if default is None)],
            takes_any=arguments.kwarg is not None,
        )

    @property
    def style(self) -> Style | None:
        """Which signature it is. None: none of the four."""
        if {"completions", "completion_ids"} & {*self.names}:
            return "trl"
        if "solution_str" in self.names:
            return "verl" if set(self.required) <= set(OF_VERL) else None
        names: dict[str, Style] = {"rollout": "native", "rollouts": "group"}
        return names.get(self.names[0]) if self.names and set(self.required) <= {self.names[0]} else None

    def select_accepted(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of `given` that the function accepts."""
        return {name: value for name, value in given.items() if self.takes_any or name in self.names}


class TrlCall:
    """One call of a function written for TRL, with all completions of a task.

    As in TRL, every column is a list, and prompts and completions are text if the task's prompt is text, and lists of
    messages otherwise.
    """

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        self._rollouts = rollouts
        self._extras: dict[str, list[Any]] = {}
        self._metrics: dict[str, list[float]] = {}

    def call(self, function: Callable[..., Any], parameters: Parameters) -> Any:
        """Return the function's result.

        Raises:
            SignatureError: the function needs a column that the task does not have.
        """
        first = self._rollouts[0]
        check_fits(parameters, first.data)
        asked = first.data.get(prompt_column(first.data) or "")
        texts = [each.response.text for each in self._rollouts]
        conversational = asked is None or isinstance(asked, list | tuple)
        columns = {name: [each.data[name] for each in self._rollouts] for name in first.data}
        given = columns | {
            "prompts": [list(each.messages[:-1]) if conversational else asked for each in self._rollouts],
            "completions": [[{"role": "assistant", "content": text}] for text in texts] if conversational else texts,
            "completion_ids": [list(each.response_ids) for each in self._rollouts],
            "trainer_state": SimpleNamespace(global_step=first.task_batch),
            "log_extra": lambda column, values: self._extras.setdefault(column, []).extend(values),
            "log_metric": lambda name, value: self._metrics.setdefault(name, []).append(float(value)),
        }
        return function(**parameters.select_accepted(given))

    def results(self, result: Any) -> list[Mapping[str, Any]]:
        """Return a mapping with the fields of a score for each completion. A None does not apply, as in TRL.

        Metrics of `log_metric` belong to every completion. The values of `log_extra` are the extracted text.

        Raises:
            SignatureError: it is not a list with one element for each completion.
        """
        count = len(self._rollouts)
        if not hasattr(result, "__len__") or isinstance(result, str | Mapping) or len(result) != count:
            raise SignatureError(
                f"returned {result!r:.80} for {count} completions. Return a list with one number per completion"
            )
        for name, values in self._extras.items():
            if len(values) != count:
                raise SignatureError(f"logged {len(values)} values of {name} for {count} completions. Log one for each")
        metrics = {name: sum(values) / len(values) for name, values in self._metrics.items()}
        return [
            {
                "value": value,
                "applies": value is not None,
                "extracted": self._join_extras(index),
                "metrics": metrics | {"not_applicable": float(value is None)},
            }
            for index, value in enumerate(result)
        ]

    def _join_extras(self, index: int) -> str | None:
        said = [f"{name}: {values[index]}" for name, values in self._extras.items()]
        return "; ".join(said) or None


def call_as_verl(function: Callable[..., Any], parameters: Parameters, rollout: Rollout) -> Any:
    """Call a function written for verl, with the values that verl reads from a row.

    Raises:
        SignatureError: the task's data has no answer.
    """
    check_fits(parameters, rollout.data)
    data = rollout.data
    given = {
        "data_source": data.get("data_source", ""),
        "solution_str": rollout.response.text,
        "ground_truth": _truth(data),
        "extra_info": data.get("extra_info") or {},
    }
    return function(**parameters.select_accepted(given))


def check_fits(parameters: Parameters, data: Mapping[str, Any]) -> None:
    """Check that a task's data has the values that a function needs.

    Raises:
        SignatureError: a TRL function needs a missing column, or the task has no answer for a verl function.
    """
    if parameters.style == "trl":
        if lacking := [name for name in parameters.required if name not in {*OF_TRL, *data}]:
            known = ", ".join(sorted(data)) or "nothing"
            raise SignatureError(f"takes {', '.join(lacking)}, and the task's data has {known}")
    elif parameters.style == "verl" and _truth(data) is None:
        raise SignatureError(
            "takes ground_truth, and the task's data has no reward_model.ground_truth, ground_truth or answer"
        )


def _truth(data: Mapping[str, Any]) -> Any:
    """Return the answer from verl's column, or from other columns. None if it has no answer."""
    model = data.get("reward_model")
    places = (model if isinstance(model, Mapping) else {}, data, {"ground_truth": data.get("answer")})
    return next((place["ground_truth"] for place in places if place.get("ground_truth") is not None), None)


def result_of_verl(result: Any) -> Any:
    """Return a mapping's ``score`` as the reward and its other numbers as metrics. Return other results unchanged.

    As in verl's validation, ``acc`` decides if the task is solved. A fraction below 1 does not solve it. ``pred`` is
    the extracted answer.

    Raises:
        SignatureError: the mapping has no ``score``, or its ``acc`` is no number.
    """
    if not isinstance(result, Mapping):
        return result
    if "score" not in result:
        raise SignatureError(f"returned {dict(result)!r:.80} without 'score'. Return a number or {{'score': NUMBER}}")
    # Numbers of numpy and torch have no dimension.
    plain = {name: value.item() if getattr(value, "ndim", None) == 0 else value for name, value in result.items()}
    accuracy = plain.get("acc")
    if not isinstance(accuracy, int | float | None):
        raise SignatureError(f"returned {accuracy!r:.80} as 'acc'. Return a number or a bool")
    return {
        "value": result["score"],
        "correct": None if accuracy is None else accuracy >= 1,
        "extracted": plain.get("pred"),
        "metrics": {name: float(each) for name, each in plain.items() if name != "score" and isinstance(each, Real)},
    }
