"""Options of the sandbox `ulimit_sandbox`. Checking a configuration imports this module, so it must import quickly."""

from pydantic import Field
from rllm_core.contracts import Params


class UlimitSandboxParams(Params):
    cpu_seconds: int = Field(default=600, gt=0, description="Maximum CPU time of a process.")
