"""The client with which verifiers calls the policy: one for all episodes. Requests go to the sessions of seats."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import aiohttp
import verifiers.v1 as vf
from pydantic import ValidationError
from verifiers.v1.clients.base import join_url
from verifiers.v1.clients.client import RelayReply
from verifiers.v1.clients.eval import EvalClient
from verifiers.v1.errors import model_error

from rllm_envs.sessions import SeatSessions
from rllm_gateway.sessions.link import OpenedSession

BAD_GATEWAY, UNAVAILABLE, CONFLICT = 502, 503, 409


class SessionsClient(EvalClient):
    """Sends each request to the session of its trace. All sessions share the connections.

    A client of verifiers belongs to one address. A session has its own address, and a client per session would load
    the certificates of this machine for each rollout.
    """

    def __init__(self, config: vf.EvalClientConfig, http: aiohttp.ClientSession) -> None:
        """`http` sends requests without a stream. The pool of httpx is slow with many connections."""
        super().__init__(config)
        self._http = http
        self._seats: dict[str, Seats] = {}

    def add(self, trace: str, seats: Seats) -> None:
        """Note the rollout of a trace."""
        self._seats[trace] = seats

    def remove(self, seats: Seats) -> None:
        """Forget the traces of a rollout that has ended."""
        for trace in seats.traces:
            self._seats.pop(trace, None)

    async def get_response(
        self,
        dialect: Any,
        body: dict[str, Any],
        sampling: Any,
        session_id: str | None = None,
        turn: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> vf.Response:
        client = await self._find_client(session_id)
        sent = {**client._headers(dialect, headers, None), "content-type": "application/json"}
        try:
            async with self._http.post(
                join_url(client.base_url, dialect.upstream_path), data=json.dumps(body), headers=sent
            ) as answer:
                status, content = answer.status, await answer.read()
        except (aiohttp.ClientError, ConnectionResetError) as error:
            raise model_error(str(error), status_code=UNAVAILABLE) from error
        if status >= 400:
            raise model_error(f"upstream {status}: {content.decode(errors='replace')}", status_code=status)
        try:
            raw = json.loads(content)
            response: vf.Response = dialect.parse_response(dialect.validate_response(raw))
        except (ValueError, ValidationError) as error:
            raise model_error(f"malformed response: {error}", status_code=BAD_GATEWAY) from error
        response.raw = raw
        return response

    async def relay(
        self,
        dialect: Any,
        body: dict[str, Any],
        session_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> RelayReply:
        return await EvalClient.relay(await self._find_client(session_id), dialect, body, None, headers)

    async def _find_client(self, trace: str | None) -> EvalClient:
        """Return a client for the session of a trace. It uses the shared connections."""
        seats = None if trace is None else self._seats.get(trace)
        found = None if trace is None or seats is None else await seats.find_session(trace)
        if found is None:
            raise model_error("the rollout of this call has ended", status_code=CONFLICT)
        session, seat = found
        client = copy.copy(self)
        client.base_url, client.api_key = session.openai_url(seat), session.key
        return client


class Seats(SeatSessions):
    """Finds the session of a run by the id of its trace."""

    def __init__(self, *inputs: Any) -> None:
        super().__init__(*inputs)
        self.traces: dict[str, vf.Trace] = {}
        """Traces of all runs, by id."""
        self._numbers: Counter[str] = Counter()

    def add(self, trace: vf.Trace) -> None:
        """Add a new run, before its first model call."""
        name = trace.agent.name
        self.traces[trace.id] = trace
        self.add_seat(trace.id, f"{name}-{self._numbers[name]}")
        self._numbers[name] += 1

    async def find_session(self, trace: str) -> tuple[OpenedSession, str] | None:
        """Return the open session of a trace, and the name of its seat. None if the rollout has ended.

        Raises:
            BackendError: see `SeatSessions.find`.
        """
        address = await self.find(trace)
        return None if address is None else (address, self.traces[trace].agent.name)
