"""A split, and the numbers of the rows that a slice of it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rllm_core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset


def rows_of_split(splits: Mapping[str, Dataset], spec: str, where: str) -> tuple[Dataset, range]:
    """The split that `spec` names, whole, and the numbers of the rows that it asks for, from 0.

    Args:
        splits: by name.
        spec: ``train``, ``train[:100]``, ``train[10%:20%]``.
        where: the source, for errors.

    Raises:
        ConfigError: there is no such split, or the slice cannot be read or has no rows.
    """
    from datasets import ReadInstruction

    name, bracket, _ = spec.partition("[")
    if "+" in spec:
        raise ConfigError(
            "unknown-split",
            f"Option `split` is {spec!r}, which joins splits.",
            "Name one split, or put the rows into one file.",
        )
    if name not in splits:
        hint = f"{did_you_mean(name, splits)} Its splits are {', '.join(splits)}."
        raise ConfigError("unknown-split", f"{where} has no split {name!r}.", hint.strip())
    split = splits[name]
    numbers = range(len(split))
    if bracket:
        try:
            (asked,) = ReadInstruction.from_spec(spec).to_absolute({name: len(split)})
        except (AssertionError, ValueError) as error:
            raise ConfigError(
                "unknown-split",
                f"Option `split` is {spec!r}: {where} has {len(split)} rows there, and no such slice.",
                "Write train[:100], train[100:200] or train[:10%].",
            ) from error
        numbers = range(asked.from_, asked.to)
    if not numbers:
        raise ConfigError("no-rows", f"{where} has no rows in {spec!r}.", "Name another split or slice.")
    return split, numbers
