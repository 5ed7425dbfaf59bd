"""How a function in rLLM's classic signature is called: which arguments it takes, and which of them by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature, signature, unwrap
from types import CodeType
from typing import Any

CONFIG, GROUPS = "algorithm_config", "traj_groups"
NORM = "norm_adv_by_std_in_grpo"
"""The one value of ``rllm.algorithm`` that a classic function also has as a keyword."""


@dataclass(frozen=True)
class ClassicCall:
    """A form of the call. rLLM shows two: ``f(rewards, algorithm_config, **kwargs)`` and ``f(rewards, **kwargs)``."""

    config_by_position: bool
    with_norm: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> ClassicCall:
        """The first form that the function's parameters allow.

        Raises:
            TypeError: they allow none; the message is about ``f(rewards, algorithm_config, traj_groups=…)``.
        """
        try:
            parameters = signature(function)
        except ValueError:
            return cls(config_by_position=True, with_norm=False)  # written in C, it does not say
        by_position = (False,) if _second_is_an_option(parameters) else (True, False)
        forms = [cls(position, norm) for position in by_position for norm in (True, False)]
        for form in forms:
            if form._fits(parameters):
                return form
        parameters.bind([], None, traj_groups=[])
        raise TypeError("its second parameter is an option of its own, and it takes no `**kwargs`")

    def arguments(self, config: Any, groups: Any, norm: bool) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """What follows the rewards: by position, and by keyword."""
        keywords = {GROUPS: groups} | ({NORM: norm} if self.with_norm else {})
        return ((config,), keywords) if self.config_by_position else ((), {CONFIG: config, **keywords})

    def _fits(self, parameters: Signature) -> bool:
        position, keywords = self.arguments(None, [], True)
        try:
            parameters.bind([], *position, **keywords)
        except TypeError:
            return False
        return True


def reads(function: object, name: str) -> bool:
    """Whether a function has a parameter of this name, or its code holds the name (as attribute or as text)."""
    if not callable(function):
        return False
    try:
        if name in signature(function).parameters:
            return True
    except ValueError:
        return False
    code = getattr(_inmost(function), "__code__", None)
    return isinstance(code, CodeType) and _names(code, name)


def _inmost(function: Callable[..., Any]) -> object:
    """The function whose code runs: beneath decorators and `partial`, and the method of an object that is called."""
    function = unwrap(function)
    if isinstance(function, partial):
        return _inmost(function.func)
    return function if hasattr(function, "__code__") else unwrap(type(function).__call__)


def _names(code: CodeType, name: str) -> bool:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    # Keywords of a call are one tuple of names.
    texts = [text for text in code.co_consts if text == name or (isinstance(text, tuple) and name in text)]
    return name in code.co_names or bool(texts) or any(_names(each, name) for each in inner)


def _second_is_an_option(parameters: Signature) -> bool:
    """Whether the second parameter is no place for a config, as ``gamma=0.9`` and the value that is a keyword are."""
    second = list(parameters.parameters.values())[1:2]
    return any(
        each.kind is Parameter.POSITIONAL_OR_KEYWORD
        and each.name != CONFIG
        and (each.name == NORM or not (each.default is Parameter.empty or each.default is None))
        for each in second
    )
