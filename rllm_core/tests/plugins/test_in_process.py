"""What the running program registers is in every registry of the process, by the same rules as what is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expecting import expect_error
from plugin_site import estimator_record

from rllm_core.contracts.estimator import EstimatorPlugin
from rllm_core.errors import PluginError
from rllm_core.plugins.registry import Registry, forget_in_process, register_in_process

pytestmark = pytest.mark.usefixtures("nothing_stays_registered")

MakeEstimator = Callable[..., EstimatorPlugin[Any]]


def test_registries_loaded_afterwards_have_it() -> None:
    forget_in_process("estimator", "mine")  # no error
    earlier = Registry.load(allow=[], environ={})
    record = estimator_record("mine")
    register_in_process(record, "notebook.mine")
    later = Registry.load(allow=["rllm-local"], environ={"RLLM_BLOCK_PLUGINS": "*"})
    assert later.get("estimator", "mine").plugin is record
    assert later.get("estimator", "in-process/mine").qualified_name == "in-process/mine"
    for registry in (earlier, Registry()):
        with pytest.raises(PluginError, match="no estimator named 'mine'"):
            registry.get("estimator", "mine")


def test_the_same_source_replaces_what_it_registered() -> None:
    first, second = estimator_record("mine"), estimator_record("mine")
    register_in_process(first, "notebook.mine")
    register_in_process(second, "notebook.mine")
    assert Registry.load(allow=[]).get("estimator", "mine").plugin is second


def test_second_source_of_a_name_is_an_error() -> None:
    register_in_process(estimator_record("mine"), "notebook.mine")
    forget = "rllm_core.plugins.registry.forget_in_process('estimator', 'mine')"
    with expect_error(PluginError, "duplicate-plugin", "notebook.mine", "notebook.other", forget):
        register_in_process(estimator_record("mine"), "notebook.other")
    forget_in_process("estimator", "mine")
    register_in_process(estimator_record("mine"), "notebook.other")


def test_installed_plugin_of_same_name_is_ambiguous(site: Any) -> None:
    site.install_estimator("their-plugin", "mine", version="1.2")
    register_in_process(estimator_record("mine"), "notebook.mine")
    registry = site.load()
    with expect_error(PluginError, "ambiguous-plugin", "their-plugin/mine", "in-process/mine"):
        registry.get("estimator", "mine")
    assert [len(clash) for clash in registry.conflicts()] == [2]


def test_invalid_spec_is_an_error_at_registration() -> None:
    with expect_error(PluginError, "bad-plugin-spec", "'values'"):
        register_in_process(estimator_record(needs="values"), "notebook.mine")
    Registry.load(allow=[], environ={})
