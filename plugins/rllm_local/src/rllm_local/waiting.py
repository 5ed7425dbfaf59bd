"""Requests that wait for a slot of the engine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from rllm_local.request import Request


class WaitingRequests:
    """A queue of requests for each client. The client with the fewest running requests is next."""

    def __init__(self) -> None:
        # The client whose request was taken longest ago comes first.
        self._queues: dict[str, deque[Request]] = {}
        self._last: str | None = None
        """Client whose request was taken last. It comes after others that have as many running requests."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[Request]:
        return (request for queue in self._queues.values() for request in queue)

    def add(self, request: Request) -> None:
        self._queues.setdefault(request.client, deque()).append(request)

    def put_back(self, requests: Sequence[Request]) -> None:
        """Put requests before those that wait. They keep their order."""
        for request in reversed(requests):
            self._queues.setdefault(request.client, deque()).appendleft(request)

    def take(self, running: Counter[str]) -> Request:
        """Remove and return the next request. `running` has the number of running requests of each client."""
        client = min(self._queues, key=lambda client: (running[client], client == self._last))
        self._last = client
        queue = self._queues.pop(client)
        request = queue.popleft()
        if queue:
            self._queues[client] = queue
        return request

    def without_slot(self, running: Counter[str]) -> list[str]:
        """Return the clients that wait and have no running request."""
        return [client for client in self._queues if not running[client]]
