"""The section of rLLM's SDK: trace storage and proxy server. The workflow `agent` of rllm-gateway reads it."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rllm_core.schema.section import ReadBy, Section, section

PUBLIC_TOKEN = "my-shared-secret"
"""The default token in rLLM. It is published with rLLM's code, so it protects nothing."""


class StoreSection(Section):
    """Storage of traces."""

    path: Annotated[str | None, ReadBy()] = Field(
        None, description="Database of traces. null means `gateway/traces.db` in the run directory."
    )


class ProcessingSection(Section):
    """Conversion of traces to trajectories."""

    groupby_key: Annotated[str | None, ReadBy()] = Field(
        None, description="Metadata key by which traces are grouped into trajectories."
    )
    traj_name_key: Annotated[str | None, ReadBy()] = Field(
        None, description="Metadata key whose value becomes the trajectory's name."
    )


class ProxySection(Section):
    """The proxy between an agent and the model."""

    host: Annotated[str, ReadBy()] = Field("127.0.0.1", description="Address that the proxy listens on.")
    port: Annotated[int, ReadBy()] = Field(4000, gt=0, lt=65536, description="Port that the proxy listens on.")
    mode: Annotated[Literal["subprocess", "external"], ReadBy()] = Field(
        "subprocess", description="`subprocess`: the run starts the proxy. `external`: the proxy is already running."
    )
    admin_token: Annotated[str | None, ReadBy()] = Field(
        None,
        min_length=1,
        description="Token for administration of the proxy. null: rllm creates a token at first use.",
    )

    @model_validator(mode="after")
    def _no_public_token_on_a_network(self) -> Self:
        if self.admin_token == PUBLIC_TOKEN and not is_loopback(self.host):
            raise ValueError(
                f"admin_token {PUBLIC_TOKEN!r} is rLLM's public default, and other machines can reach host "
                f"{self.host!r}; remove admin_token so that rllm creates one, or set host to 127.0.0.1"
            )
        return self


class SdkSection(Section):
    """Traces of agents that run outside a workflow."""

    store: StoreSection = section(StoreSection)
    processing: ProcessingSection = section(ProcessingSection)
    proxy: ProxySection = section(ProxySection)


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
