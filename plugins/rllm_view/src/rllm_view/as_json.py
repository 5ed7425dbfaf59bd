"""JSON of answers. Long columns are compressed, and numbers that are not finite become null."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

DIGITS = 5
RUNS_WORTH = 4
"""A column with fewer runs of equal values than a fourth of its length is written as runs."""


def as_json(data: Any) -> bytes:
    """Return data classes, dicts, lists and columns as JSON."""
    try:
        return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        # orjson supports neither halves of surrogate pairs nor integers beyond 64 bits. The standard library does.
        return json.dumps(_plain(data), allow_nan=False).encode()


def pack_column(values: NDArray[np.float64] | None) -> Any:
    """Return a column as ``{"n": n, "runs": [[first, value], …]}`` or ``{"values": […]}``. None stays None."""
    if values is None:
        return None
    short = significant(values)
    same = (short[1:] == short[:-1]) | (np.isnan(short[1:]) & np.isnan(short[:-1]))
    starts = np.concatenate(([0], np.flatnonzero(~same) + 1)) if len(short) else np.zeros(0, np.int64)
    if len(starts) * RUNS_WORTH <= len(short) or not len(short):
        return {"n": len(short), "runs": [[int(start), _finite(short[start])] for start in starts]}
    return {"values": short}


def significant(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values with `DIGITS` significant digits. Infinities become NaN."""
    with np.errstate(all="ignore"):
        finite = np.where(np.isfinite(values), values, np.nan)
        magnitude = np.floor(
            np.log10(np.abs(finite), where=(finite != 0) & ~np.isnan(finite), out=np.zeros(len(values)))
        )
        scale = 10.0 ** (DIGITS - 1 - magnitude)
        short = np.round(finite * scale) / scale
    # The scales of very small and very large numbers overflow.
    return np.where(np.isfinite(short), short, finite)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _plain(data: Any) -> Any:
    if hasattr(data, "__dataclass_fields__"):
        return {name: _plain(getattr(data, name)) for name in data.__dataclass_fields__}
    if isinstance(data, dict):
        return {str(name): _plain(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, np.ndarray):
        return [_plain(value) for value in data.tolist()]
    return _finite(data) if isinstance(data, float) else data
