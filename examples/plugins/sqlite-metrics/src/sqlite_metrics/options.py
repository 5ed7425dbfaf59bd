"""Options of the tracker `sqlite_metrics`. Checking a configuration imports this module, so it must import quickly."""

from pydantic import Field
from rllm_core.contracts import Params


class SqliteMetricsParams(Params):
    file: str = Field(default="metrics.db", min_length=1, description="Database in the run directory.")
