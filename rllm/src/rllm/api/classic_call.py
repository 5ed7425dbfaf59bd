"""The form in which to call a function with rLLM's classic signature: its arguments, and which are positional."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature, signature, unwrap
from types import CodeType
from typing import Any

CONFIG, GROUPS = "algorithm_config", "traj_groups"
NORM = "norm_adv_by_std_in_grpo"
"""The only value of ``rllm.algorithm`` that a classic function also receives as a keyword."""


@dataclass(frozen=True)
class ClassicCall:
    """A form of the call. rLLM has two: ``f(rewards, algorithm_config, **kwargs)`` and ``f(rewards, **kwargs)``."""

    config_by_position: bool
    with_norm: bool

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> ClassicCall:
        """Return the first form that the function's parameters allow.

        Raises:
            TypeError: they allow no form. The message is about ``f(rewards, algorithm_config, traj_groups=…)``.
        """
        try:
            parameters = signature(function)
        except ValueError:
            return cls(config_by_position=True, with_norm=False)  # functions written in C may have no signature
        by_position = (False,) if _second_is_an_option(parameters) else (True, False)
        forms = [cls(position, norm) for position in by_position for norm in (True, False)]
        for form in forms:
            if form._fits(parameters):
                return form
        parameters.bind([], None, traj_groups=[])
        raise TypeError("its second parameter is an option, and it takes no `**kwargs`")

    def arguments(self, config: Any, groups: Any, norm: bool) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments after the rewards: positional arguments and keyword arguments."""
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
    """Return True if a function has a parameter of this name, or if its code contains the name (as attribute or
    string)."""
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
    """Return the function whose code runs, without decorators and `partial`. For a callable object, return its
    method."""
    function = unwrap(function)
    if isinstance(function, partial):
        return _inmost(function.func)
    return function if hasattr(function, "__code__") else unwrap(type(function).__call__)


def _names(code: CodeType, name: str) -> bool:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    # The keywords of a call are stored as one tuple of names.
    texts = [text for text in code.co_consts if text == name or (isinstance(text, tuple) and name in text)]
    return name in code.co_names or bool(texts) or any(_names(each, name) for each in inner)


def _second_is_an_option(parameters: Signature) -> bool:
    """Return True if the second parameter is an option and not the config, for example ``gamma=0.9`` or the keyword
    `NORM`."""
    second = list(parameters.parameters.values())[1:2]
    return any(
        each.kind is Parameter.POSITIONAL_OR_KEYWORD
        and each.name != CONFIG
        and (each.name == NORM or not (each.default is Parameter.empty or each.default is None))
        for each in second
    )
