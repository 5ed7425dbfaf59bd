"""The environments as a run finds them: through the records of the plugin."""

from __future__ import annotations

from typing import Any

import pytest

from rllm.builtin.environments.plugin import rllm_environments
from rllm_core.contracts.environment import EnvironmentPlugin


@pytest.fixture(scope="session")
def records() -> dict[str, EnvironmentPlugin[Any]]:
    return {record.name: record for record in rllm_environments()}
