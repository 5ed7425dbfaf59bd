"""The three signatures of reward functions. The names of the parameters identify them.

======== =================================================== =========================================
native   ``score(rollout)``                                   returns a `Score`, a number or a mapping
TRL      ``score(prompts, completions, **columns)``           returns a list, here of one number
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
from typing import Any, Literal

from rllm.builtin.tasks.question import prompt_column
from rllm_core.contracts.reward import Rollout

Style = Literal["native", "trl", "verl"]
OF_VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
OF_TRL = ("prompts", "completions")


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
        """Which signature it is; None: none of the three."""
        if "completions" in self.names:
            return "trl"
        if "solution_str" in self.names:
            return "verl" if set(self.required) <= set(OF_VERL) else None
        return "native" if self.names[:1] == ["rollout"] and set(self.required) <= {"rollout"} else None

    def select_accepted(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of `given` that the function accepts."""
        return {name: value for name, value in given.items() if self.takes_any or name in self.names}


def call_as_trl(function: Callable[..., Any], parameters: Parameters, rollout: Rollout) -> Any:
    """Call a function written for TRL, with a batch of one: every column is a list with one value.

    As in TRL, prompts and completions are text if the task's prompt is text, and lists of messages otherwise.

    Raises:
        SignatureError: the function needs a column that the task does not have.
    """
    asked = rollout.data.get(prompt_column(rollout.data) or "")
    conversational = asked is None or isinstance(asked, list | tuple)
    columns = {name: [value] for name, value in rollout.data.items() if name not in OF_TRL}
    given = columns | {
        "prompts": [list(rollout.messages[:-1]) if conversational else asked],
        "completions": [
            [{"role": "assistant", "content": rollout.response.text}] if conversational else rollout.response.text
        ],
    }
    check_fits(parameters, rollout.data)
    return function(**parameters.select_accepted(given))


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


def result_of_trl(result: Any) -> Any:
    """Return the only number of a list.

    Raises:
        SignatureError: it is not a list with one element.
    """
    if not hasattr(result, "__len__") or isinstance(result, str | Mapping) or len(result) != 1:
        raise SignatureError(
            f"returned {result!r:.80} for one completion. Return a list with one number per completion"
        )
    return next(iter(result))


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
