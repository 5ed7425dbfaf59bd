import asyncio
import inspect
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import pytest

from rllm_core.contracts.backend import Backend, BackendWrapper

METHODS = [name for name, _ in inspect.getmembers(Backend, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("method", METHODS)
def test_wrapper_passes_each_call_on(method: str) -> None:
    inner: Any = create_autospec(Backend, instance=True)
    arguments = ["argument"] * (len(inspect.signature(getattr(Backend, method)).parameters) - 1)
    answer = getattr(BackendWrapper(inner), method)(*arguments)
    called = getattr(inner, method)
    if isinstance(called, AsyncMock):
        answer = asyncio.run(answer)
    called.assert_called_once_with(*arguments)
    assert answer is (None if method == "check_checkpoint" else called.return_value) or answer is None
