"""The backend `endpoint`."""

from __future__ import annotations

from collections.abc import Iterable

from rllm.endpoint.settings import EndpointConfig
from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities


def _load() -> type[Backend]:
    from rllm.endpoint.backend import EndpointBackend

    return EndpointBackend


def backends() -> Iterable[BackendPlugin[EndpointConfig]]:
    yield BackendPlugin(
        name="endpoint",
        summary="Any server of OpenAI's chat-completions API; samples for `rllm eval` and does not train.",
        params=EndpointConfig,
        load=_load,
        model_key="endpoint.url",
        capabilities=Capabilities(trains=False, full_logprobs=False, token_ids=False),
    )
