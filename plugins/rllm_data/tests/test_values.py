"""The values that a cell may contain, and their conversion."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

from rllm_data.dataset import NotJsonError, json_value

from .conftest import Read, write_lines

CONVERTED: dict[str, tuple[Any, Any]] = {
    "text": ("a", "a"),
    "truth": (True, True),
    "null": (None, None),
    "nan": (math.nan, None),
    "number_of_numpy": (np.float32(0.5), 0.5),
    "array": (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    "tuple": ((1, "a"), [1, "a"]),
    "struct": ({"a": [{"b": None}], 1: np.int64(2)}, {"a": [{"b": None}], "1": 2}),
    "bytes": ("déjà".encode(), "déjà"),
    "timestamp": (datetime(2024, 2, 3, 4, 5, tzinfo=UTC), "2024-02-03T04:05:00+00:00"),
    "timestamp_of_pandas": (pd.Timestamp("2024-02-03 04:05:06.000000007"), "2024-02-03T04:05:06.000000007"),
    "date": (date(2024, 2, 3), "2024-02-03"),
    "time": (time(4, 5), "04:05:00"),
    "duration": (timedelta(minutes=1.5), 90.0),
    "decimal": (Decimal("0.10"), "0.10"),
    "uuid": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_a_value_becomes_json(name: str) -> None:
    value, wanted = CONVERTED[name]
    made = json_value(value)
    assert made == wanted
    assert type(made) is type(wanted)
    assert json.loads(json.dumps(made)) == made


@pytest.mark.parametrize(
    ("value", "said"),
    [(b"\xff\xfe", "2 bytes.* UTF-8"), (-math.inf, "-inf"), ({"a": [object()]}, "a object")],
)
def test_a_value_without_json_is_refused(value: Any, said: str) -> None:
    with pytest.raises(NotJsonError, match=f"^{said}$"):
        json_value(value)


def test_arrays_and_structs_of_data_frames_are_read(read: Read) -> None:
    frame = pd.DataFrame(
        {"cells": [np.array([1.5, np.nan])], "when": [pd.Timestamp("2024-02-03")], "s": [{"a": {"b": 1}}]}
    )
    frame.to_parquet("rows.parquet")
    data = read("rows.parquet")[0].data
    assert data == {"cells": [1.5, None], "when": "2024-02-03T00:00:00", "s": {"a": {"b": 1}}, "data_source": "rows"}


def test_json_of_mixed_types_stays_as_it_is(read: Read) -> None:
    rows = [{"answer": 4, "meta": {"a": 1}}, {"answer": "four", "meta": {"b": [None]}}]
    data = [task.data for task in read(write_lines("rows.json", rows))]
    assert [{name: each[name] for name in row} for each, row in zip(data, rows, strict=True)] == rows
