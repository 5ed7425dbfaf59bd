"""What rllm-endpoint offers: the backend `endpoint`."""

from __future__ import annotations

from collections.abc import Iterable

from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities
from rllm_core.plugins import hookimpl
from rllm_endpoint.settings import EndpointConfig

requires_api = 1


def _load() -> type[Backend]:
    from rllm_endpoint.backend import EndpointBackend

    return EndpointBackend


@hookimpl
def rllm_backends() -> Iterable[BackendPlugin[EndpointConfig]]:
    yield BackendPlugin(
        name="endpoint",
        summary="Any server of OpenAI's chat-completions API; samples for `rllm eval` and does not train.",
        params=EndpointConfig,
        load=_load,
        model_key="endpoint.url",
        capabilities=Capabilities(trains=False, full_logprobs=False, token_ids=False),
    )
