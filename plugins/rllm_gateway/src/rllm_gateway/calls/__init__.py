"""A durable store of model calls. An acknowledged call stays in the store, even if the process crashes.

`CallStore` writes and reads. `CallReader` only reads, also while other processes write.
"""

from rllm_gateway.calls.reader import CallReader
from rllm_gateway.calls.rows import (
    CallRow,
    DeliveryRow,
    EndRow,
    RewardRow,
    Row,
    SessionRow,
    SessionSummary,
    StoredSession,
    StoreError,
)
from rllm_gateway.calls.store import CallStore

__all__ = [
    "CallReader",
    "CallRow",
    "CallStore",
    "DeliveryRow",
    "EndRow",
    "RewardRow",
    "Row",
    "SessionRow",
    "SessionSummary",
    "StoreError",
    "StoredSession",
]
