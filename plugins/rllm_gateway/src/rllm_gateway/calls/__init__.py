"""Model calls in a durable store: a call that is acknowledged is in it, whatever becomes of the process.

`CallStore` writes and reads, `CallReader` reads, beside any number of writing processes.
"""

from rllm_gateway.calls.reader import CallReader, Damage
from rllm_gateway.calls.rows import (
    CallRow,
    DamagedError,
    DeliveryRow,
    DuplicateError,
    EndRow,
    RewardRow,
    Row,
    SealedError,
    SessionRow,
    SessionSummary,
    StoredSession,
    StoreError,
    UnknownSessionError,
)
from rllm_gateway.calls.store import CallStore

__all__ = [
    "CallReader",
    "CallRow",
    "CallStore",
    "Damage",
    "DamagedError",
    "DeliveryRow",
    "DuplicateError",
    "EndRow",
    "RewardRow",
    "Row",
    "SealedError",
    "SessionRow",
    "SessionSummary",
    "StoreError",
    "StoredSession",
    "UnknownSessionError",
]
