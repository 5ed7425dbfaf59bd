"""A plugin by its qualified name, where no record can be sent."""

from __future__ import annotations

import pytest
from expecting import expect_error

from rllm_core.errors import PluginError
from rllm_core.plugins import resolve


def test_a_qualified_name_gives_the_record() -> None:
    found = resolve("loss", "rllm-core/ppo")
    assert (found.qualified_name, found.kind) == ("rllm-core/ppo", "loss")


def test_what_the_running_program_registered_cannot_be_found_elsewhere() -> None:
    with expect_error(PluginError, "plugin-of-other-program", "'in-process/mine'", "--kind"):
        resolve("loss", "in-process/mine")


def test_a_name_that_is_not_installed_is_an_error_that_names_it() -> None:
    with pytest.raises(PluginError, match="nobody/mine"):
        resolve("loss", "nobody/mine")
