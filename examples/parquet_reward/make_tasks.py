"""Writes sums.parquet: sums of one digit, in the layout of verl."""

import pyarrow
import pyarrow.parquet

rows = [
    {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": f"{left}+{right}"}],
        "reward_model": {"ground_truth": str(left + right)},
    }
    for left in range(10)
    for right in range(10 - left)
]
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "sums.parquet")
