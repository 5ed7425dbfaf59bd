"""Contract of all kinds of plugins: found by name, cheap to list, options are validated and can be serialized."""

from __future__ import annotations

import functools
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any, ClassVar, Generic, Self

import pytest
from pydantic import BaseModel, ValidationError

from rllm_core.contracts.chosen import RecordT, Registered
from rllm_core.errors import RllmError, format_problem
from rllm_core.plugins.choice import choose
from rllm_core.plugins.registry import Registry
from rllm_plugin_kit.process_state import find_changes

UNKNOWN_OPTION = "an_option_nobody_has"
LONGEST_LABEL = 200
"""Maximum number of characters for the options in a test's name."""


@cache
def _load_registry_for(path: tuple[str, ...], *lists: str | None) -> Registry:
    return Registry.load()


def _load_registry() -> Registry:
    """Return the installed plugins. The result is cached, because loading all specs takes longer than most tests."""
    return _load_registry_for(
        tuple(sys.path), os.environ.get("RLLM_BLOCK_PLUGINS"), os.environ.get("RLLM_ALLOW_PLUGINS")
    )


class PluginContract(Generic[RecordT]):
    """Base of all contracts. Tests that take `params` run once for each mapping in `options`."""

    kind: ClassVar[str]

    name: ClassVar[str] = ""
    """The plugin's ``name`` or ``distribution/name``, as in config."""
    options: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    """Options to test, each a mapping as in config. An empty mapping means the defaults."""

    @classmethod
    def for_each(cls, *distributions: str, **attributes: Mapping[str, Any]) -> dict[str, type[Self]]:
        """Return a test class for every plugin of these packages, by class name. `attributes` sets fields by plugin.

        ``globals().update(EstimatorContract.for_each("rllm-median", median={"options": ({}, {"scale": 2.0})}))``
        """
        classes = {}
        for entry in _load_registry().all(cls.kind):
            if entry.distribution in distributions:
                name = "Test" + entry.name.title().replace("_", "")
                classes[name] = type(name, (cls,), {"name": entry.qualified_name, **attributes.pop(entry.name, {})})
        if attributes:
            raise ValueError(f"{', '.join(distributions)}: no {cls.kind} named {', '.join(attributes)}")
        return classes

    def record(self) -> RecordT:
        """The tested plugin spec: the installed one with that `name`. Override it for one that is not installed."""
        record: RecordT = self._find_in_registry().plugin
        return record

    @cached_property
    def plugin(self) -> RecordT:
        """The plugin spec, looked up once per test."""
        return self.record()

    @property
    def display_name(self) -> str:
        """The plugin, for messages."""
        return f"{self.kind} {self.name or self.plugin.name!r}"

    @property
    def labels(self) -> list[str]:
        """One name for each of `options`, for ids of tests."""
        labels = [",".join(f"{key}={value}" for key, value in given.items()) or "defaults" for given in self.options]
        # A whole configuration makes no name.
        return [label if len(label) <= LONGEST_LABEL else f"options{number}" for number, label in enumerate(labels)]

    def failure(self, what: str, fix: str) -> AssertionError:
        """A failed test: which plugin, what is wrong with it, and how to fix it."""
        return AssertionError(f"{self.display_name} {what.rstrip('.')}. {fix}")

    @contextmanager
    def explain_errors(self, what: str, fix: str) -> Iterator[None]:
        """Turn an exception of the plugin into a failed test."""
        try:
            yield
        except Exception as error:
            raise self.failure(f"{what}: {type(error).__name__}: {error}", fix) from error

    def make(self, *arguments: Any, called_with: str) -> Any:
        """Return the result of the plugin's factory, which `load` returns."""
        with self.explain_errors("cannot be made", f"What `load` returns is called with {called_with}."):
            return self.load_plugin()(*arguments)

    def check_process_state(self, act: Callable[[], object], fix: str, when: str = "") -> None:
        """Check that an action changes nothing that other code shares, apart from loading the plugin."""
        self.load_plugin()
        if different := find_changes(act):
            raise self.failure(f"leaves {', '.join(different)} changed{when}", fix)

    def saved_state(self, thing: Any) -> str:
        """Return the result of `state_dict` as JSON."""
        try:
            return json.dumps(thing.state_dict())
        except (TypeError, ValueError) as error:
            raise self.failure(
                f"has a state that is not JSON data: {error}",
                "Write arrays with `tolist`, sets as sorted lists, and groups with rllm_core.data.codec.group_to_json.",
            ) from error

    def params_from(self, options: Mapping[str, Any]) -> Any:
        """Return an instance of the spec's `params`, validated like config. Raises ConfigError."""
        registry = Registry()
        added = registry.add(self.plugin)
        choice = {"name": added.qualified_name, **options}
        return choose(registry, self.kind, choice, f"{type(self).__name__}.options").params

    def load_plugin(self) -> Callable[..., Any]:
        """Call the plugin's `load` and return its result."""
        with self.explain_errors(
            "cannot be loaded",
            "Call the `load` of the plugin spec in Python, and correct the import or call that fails.",
        ):
            implementation: Callable[..., Any] = self.plugin.load()
        if not callable(implementation):
            raise self.failure(f"loads {implementation!r:.80}", "Return the function or class itself from `load`.")
        return implementation

    @pytest.fixture
    def params(self, request: pytest.FixtureRequest) -> Any:
        """The validated options of this test."""
        return self.params_from(request.param)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Called by pytest for every test of the class."""
        if "params" in metafunc.fixturenames:
            metafunc.parametrize("params", self.options, indirect=True, ids=self.labels)

    def test_plugin_spec_is_valid(self) -> None:
        """The spec is found by its name, has this version of the API, and has every field that its kind needs."""
        try:
            Registry().add(self.plugin)
        except RllmError as error:
            raise AssertionError(str(error)) from error

    def test_plugin_loads(self) -> None:
        self.load_plugin()

    def test_listing_imports_no_heavy_packages(self) -> None:
        if type(self).record is not PluginContract.record:
            pytest.skip("this plugin spec is not installed")
        if heavy := list_heavy_imports(self._find_in_registry().distribution):
            raise self.failure(
                f"comes with a package that imports {', '.join(heavy)} whenever plugins are listed",
                "Move these imports into the plugin spec's `load` function, or into the module that `load` imports.",
            )

    def test_options_are_validated(self, params: BaseModel) -> None:
        """Unknown options are rejected, and values cannot change after start."""
        try:
            type(params).model_validate(params.model_dump() | {UNKNOWN_OPTION: 1})
        except ValidationError:
            pass
        else:
            raise self.failure(
                "takes an option that it does not have, so a misspelt option would go unnoticed",
                "Derive its params class from rllm_core.contracts.plugin.Params, which forbids extra fields.",
            )
        if not params.model_config.get("frozen"):
            raise self.failure(
                "has options that can be changed after start",
                "Derive its params class from rllm_core.contracts.plugin.Params, which is frozen.",
            )

    def test_options_survive_a_json_round_trip(self, params: BaseModel) -> None:
        """Config and checkpoints read options this way. This also validates defaults, which pydantic does not."""
        try:
            again = type(params).model_validate_json(params.model_dump_json(by_alias=True), strict=True)
        except ValueError as error:
            problem = " ".join(str(error).split())
            raise self.failure(
                f"has options that fail validation when they are read back: {problem}",
                "Give each field of its params a default that its type accepts.",
            ) from error
        if again != params:
            raise self.failure(
                f"has options that read back as others: {params!r} became {again!r}",
                "Use only types in its params that JSON supports.",
            )

    def test_options_can_be_pickled(self, params: BaseModel) -> None:
        try:
            again = pickle.loads(pickle.dumps(params))
        except (pickle.PickleError, AttributeError, TypeError) as error:
            raise self.failure(
                f"has options that cannot be pickled: {error}",
                "Define its params class at the top level of a module, with fields of plain data.",
            ) from error
        if again != params:
            raise self.failure("has options that differ once unpickled", "Store only pydantic fields in its params.")

    def _find_in_registry(self) -> Registered[Any]:
        if not self.name:
            raise AssertionError(f"{type(self).__name__} names no plugin. Set its class attribute `name`.")
        registry = _load_registry()
        try:
            return registry.get(self.kind, self.name)
        except RllmError as error:
            reasons = "".join(f" {broken.name} is broken: {broken.reason}." for broken in registry.broken)
            raise AssertionError(format_problem(f"{error.message}{reasons}", error.hint)) from error


HEAVY = (
    *("numpy", "scipy", "pandas", "sklearn", "matplotlib", "torch", "tensorflow", "jax", "flax", "triton"),
    *("transformers", "tokenizers", "safetensors", "accelerate", "peft", "datasets", "sentence_transformers"),
    *("ray", "vllm", "sglang", "verl", "trl", "tinker", "deepspeed", "megatron", "openai", "anthropic", "wandb"),
)
"""Packages that take long to import, or that talk to something."""

_SCRIPT = """
import json, sys
from rllm_core.plugins.registry import Registry

asked = json.load(sys.stdin)
Registry.load(allow=[asked["distribution"]], environ={})
print(json.dumps([package for package in asked["heavy"] if package in sys.modules]))
"""


def list_heavy_imports(distribution: str) -> list[str]:
    """Which of `HEAVY` are imported when the plugins of `distribution` are listed."""
    return _list_heavy_imports(distribution, os.pathsep.join(filter(None, sys.path)))


@functools.cache
def _list_heavy_imports(distribution: str, path: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        input=json.dumps({"distribution": distribution, "heavy": HEAVY}),
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    heavy: list[str] = json.loads(done.stdout)
    return heavy
