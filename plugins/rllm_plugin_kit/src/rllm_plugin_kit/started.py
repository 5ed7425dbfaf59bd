"""Base of the contracts of engines and backends, which start one object for many tests."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Generic, TypeVar

import pytest

from rllm_core.contracts.engine import Completion
from rllm_core.contracts.plugin import Plugin
from rllm_plugin_kit.plugin import PluginContract

T = TypeVar("T")


class StartedSession:
    """An object under test from start to close. Synchronous code calls it on a separate event loop."""

    def __init__(self, subject: Any) -> None:
        self._loop = asyncio.Runner()
        self._subject = subject
        self.closed = False

    def ask(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a method of the object and return its result."""
        return self._loop.run(coroutine)

    def close(self) -> None:
        """Close the object twice, and then the event loop."""
        self.closed = True
        try:
            self.ask(self._subject.close())
            self.ask(self._subject.close())
        finally:
            self._loop.close()


RecordT = TypeVar("RecordT", bound=Plugin[Any])
SessionT = TypeVar("SessionT", bound=StartedSession)


class StartedContract(PluginContract[RecordT], Generic[RecordT, SessionT]):
    """Tests that request `session` share one for each of the `options`."""

    @abstractmethod
    def start(self, options: Mapping[str, Any]) -> SessionT:
        """Start what is tested, with these options."""

    @pytest.fixture(scope="class")
    @classmethod
    def session(cls, request: pytest.FixtureRequest) -> Iterator[SessionT]:
        """Start the object under test, and close it after the tests."""
        session = cls().start(request.param)
        yield session
        if not session.closed:
            session.close()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        super().pytest_generate_tests(metafunc)
        if "session" in metafunc.fixturenames:
            metafunc.parametrize("session", self.options, indirect=True, ids=self.labels, scope="class")

    def _check_stop(self, text: str, before: str, completion: Completion, text_of: Callable[[Any], str]) -> None:
        """Check a response with the stop text `text`. `before` is the response without it."""
        said, earlier = text_of(completion.token_ids), text_of(completion.token_ids[:-1])
        if not before.startswith(said) or (text in before) != (text in said) or text in earlier:
            raise self.failure(
                f"returned {said!r} with the stop text {text!r}, and {before!r} without",
                "End with the first token that completes the text; tokens before it do not change.",
            )
        if text in said and completion.finish_reason != "stop":
            raise self.failure(
                f"reports {completion.finish_reason!r} for a response that ends at its stop text", "Report 'stop'."
            )
