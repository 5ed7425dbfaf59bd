"""Plugin spec of the backend `endpoint`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllm_core.contracts.backend import BackendPlugin, Capabilities
from rllm_core.lazy import load_from
from rllm_core.plugins import hookimpl

requires_api = 1


@hookimpl
def rllm_backends() -> Iterable[BackendPlugin[Any]]:
    yield BackendPlugin(
        name="endpoint",
        summary="Any server of OpenAI's chat-completions API; samples for `rllm eval` and does not train.",
        load_params=load_from("rllm.builtin.endpoint.settings", "EndpointConfig"),
        load=load_from("rllm.builtin.endpoint.backend", "EndpointBackend"),
        model_key="endpoint.url",
        capabilities=Capabilities(trains=False, full_logprobs=False, token_ids=False),
    )
