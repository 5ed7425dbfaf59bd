"""Options of the environment `nemo_gym`."""

from __future__ import annotations

from pydantic import Field

from rllm_core.contracts.params import Params


class NemoGymParams(Params):
    """Options of ``nemo_gym``: the resources server's address and its time limit."""

    url: str = Field(pattern=r"^https?://[^/]+")
    """Address of a running resources server, such as http://127.0.0.1:8000."""
    timeout: float = Field(600.0, gt=0)
    """Maximum number of seconds for one request to the server."""
