"""The section of rLLM's SDK: trace storage and proxy server. The workflow `agent` of rllm-gateway acts on it."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rllm_core.schema.section import ReadBy, Section, section

PUBLIC_TOKEN = "my-shared-secret"
"""What rLLM ships as default token, so everybody knows it."""


class StoreSection(Section):
    """Where traces are kept."""

    path: Annotated[str | None, ReadBy()] = Field(
        None, description="Database of traces; null means `gateway/traces.db` in the run folder."
    )


class ProcessingSection(Section):
    """How traces become trajectories."""

    groupby_key: Annotated[str | None, ReadBy()] = Field(None, description="Key that groups trajectories.")
    traj_name_key: Annotated[str | None, ReadBy()] = Field(None, description="Key that names trajectories.")


class ProxySection(Section):
    """The proxy between an agent and the model."""

    host: Annotated[str, ReadBy()] = Field("127.0.0.1", description="Address the proxy listens on.")
    port: Annotated[int, ReadBy()] = Field(4000, gt=0, lt=65536, description="Port the proxy listens on.")
    mode: Annotated[Literal["subprocess", "external"], ReadBy()] = Field(
        "subprocess", description="Whether the run starts the proxy or finds it running."
    )
    admin_token: Annotated[str | None, ReadBy()] = Field(
        None, min_length=1, description="Token of the proxy's administration; null means one made at first use."
    )

    @model_validator(mode="after")
    def _no_public_token_on_a_network(self) -> Self:
        if self.admin_token == PUBLIC_TOKEN and not is_loopback(self.host):
            raise ValueError(
                f"admin_token {PUBLIC_TOKEN!r} is known to everybody and host {self.host!r} is not this machine alone; "
                "leave the token out, so that one is made, or listen on 127.0.0.1"
            )
        return self


class SdkSection(Section):
    """Traces of agents that are not run by a workflow."""

    store: StoreSection = section(StoreSection)
    processing: ProcessingSection = section(ProcessingSection)
    proxy: ProxySection = section(ProxySection)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
