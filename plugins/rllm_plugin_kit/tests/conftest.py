"""Runs contracts as pytest does, on records that are not installed, and collects what they complain about."""

from __future__ import annotations

import copy
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from plugin_site import plugin_example

import rllm_plugin_kit
from rllm_core.contracts.plugin import Plugin
from rllm_core.plugins.specs import KINDS
from rllm_plugin_kit.plugin import PluginContract

Complaint = Callable[..., str]
Complaints = Callable[..., dict[str, str]]


def vary(base: type[Any], **members: Any) -> type[Any]:
    """Return a class that differs from `base` in these members."""
    return type(f"{base.__name__}Variant", (base,), members)


def later(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine function with the results of `function`."""

    async def run(*arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)

    return run


PROCESS = "process_wide_state_is_unchanged"
FIELDS: dict[str, dict[str, Any]] = {"environment": {"blocking": False}, "reward": {"needs": frozenset({"answer"})}}


def make_plugin(kind: str, made: Any, **fields: Any) -> Any:
    """Return a plugin spec that loads `made`."""
    # Renderers are made by a class method.
    made = getattr(made, "make", made)
    given: dict[str, Any] = {"name": "mine", "summary": "For tests.", "load": lambda: made}
    if hasattr(made, "top_logprobs"):
        given["distributions"] = True
    return KINDS[kind].record(**given | FIELDS.get(kind, {}) | fields)


def _held_to(contract: type[PluginContract[Any]], record: Plugin[Any], attributes: Mapping[str, Any]) -> Any:
    """A test class for a record."""
    return type("TestRecord", (contract,), {"record": lambda self: record, **attributes})


def _calls(tests: Any, name: str, given: Mapping[str, Any]) -> Iterator[Callable[[], object]]:
    """Each case of one test, ready to be called."""
    method = getattr(tests, name)
    marks = [mark.args for mark in getattr(method, "pytestmark", []) if mark.name == "parametrize"]
    axes = [[{argument: value} for value in values] for argument, values in marks]
    if "params" in inspect.signature(method).parameters:
        axes.append([{"params": tests().params_from(options)} for options in tests.options])
    fixed = {argument: value for argument, value in given.items() if argument in inspect.signature(method).parameters}
    for case in itertools.product(*axes):
        arguments = fixed | {argument: value for part in case for argument, value in part.items()}
        yield partial(getattr(tests(), name), **arguments)


def _first_complaint(tests: Any, name: str, given: Mapping[str, Any]) -> str:
    for call in _calls(tests, name, given):
        try:
            call()
        except AssertionError as error:
            return str(error)
        except pytest.skip.Exception:
            continue
    return ""


@pytest.fixture(scope="session")
def complaint() -> Complaint:
    """What one test of a contract says of a record; empty when it finds nothing wrong.

    `test` is its name, or a beginning that only it has. `given` are its fixtures, `attributes` are set in the test
    class.
    """

    def run(
        contract: type[PluginContract[Any]],
        record: Plugin[Any],
        test: str,
        *,
        given: Mapping[str, Any] | None = None,
        **attributes: Any,
    ) -> str:
        (name,) = {f"test_{test}"} & {*dir(contract)} or [
            each for each in dir(contract) if each.startswith(f"test_{test}")
        ]
        return _first_complaint(_held_to(contract, record, attributes), name, given or {})

    return run


@pytest.fixture
def reported(complaint: Complaint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Complaint:
    """What one test of the contract of a kind says of a plugin spec, or of one that loads this."""
    monkeypatch.setenv("MINE", "before")
    monkeypatch.chdir(tmp_path)

    def run(kind: str, made: Any, test: str, **attributes: Any) -> str:
        contract = getattr(rllm_plugin_kit, f"{kind.capitalize()}Contract")
        record = made if isinstance(made, Plugin) else make_plugin(kind, made)
        # A plugin with a mistake may change what it is given.
        own = {
            name: copy.deepcopy(vars(contract)[name])
            for name in ("observations", "conversations", "task")
            if name in vars(contract)
        }
        return complaint(contract, record, test, given={"tmp_path": tmp_path}, **own | attributes)

    return run


@pytest.fixture(scope="session")
def example() -> Callable[[str], Plugin[Any]]:
    """The plugin spec of the example in the docstring of a kind's spec class."""

    def run(kind: str) -> Plugin[Any]:
        # An options class looks up its module by name.
        module = sys.modules[f"example_{kind}"] = types.ModuleType(f"example_{kind}")
        exec(plugin_example(kind), module.__dict__)
        (record,) = module.__dict__[KINDS[kind].hook]()
        return record

    return run


@pytest.fixture(scope="session")
def complaints() -> Complaints:
    """What all tests of a contract say of a record, by test."""

    def run(
        contract: type[PluginContract[Any]],
        record: Plugin[Any],
        *,
        given: Mapping[str, Any] | None = None,
        **attributes: Any,
    ) -> dict[str, str]:
        tests = _held_to(contract, record, attributes)
        names = [name for name in vars(contract) | vars(PluginContract) if name.startswith("test_")]
        found = {name: _first_complaint(tests, name, given or {}) for name in names}
        return {name: text for name, text in found.items() if text}

    return run
