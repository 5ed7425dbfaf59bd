"""Asks a gateway that outlives runs whether it would take one, without attaching."""

from __future__ import annotations

import json
import socket

from rllm_core.errors import BackendError

SECONDS_TO_ANSWER = 10.0
LONGEST_ANSWER = 1 << 16


def probe(host: str, port: int, token: str) -> None:
    """Return where a run would be attached now. Blocks for some seconds at most.

    Raises:
        BackendError: nobody listens there, it is no gateway, or it refuses the run.
    """
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), SECONDS_TO_ANSWER) as connection:
            connection.sendall(json.dumps({"token": token, "probe": True}).encode() + b"\n")
            with connection.makefile("rb") as said:
                answer = json.loads(said.readline(LONGEST_ANSWER))
    except OSError as error:
        raise BackendError(
            f"No gateway takes runs at {where}: {error}.", "Start one with: rllm gateway serve"
        ) from error
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or answer.keys().isdisjoint(("free", "refused")):
        raise BackendError(
            f"What listens at {where} is no gateway.",
            "Start one with `rllm gateway serve`; runs attach at the port behind rllm.sdk.proxy.port.",
        )
    if "refused" in answer:
        raise BackendError(f"The gateway at {where} refuses the run: {answer['refused']}.")
