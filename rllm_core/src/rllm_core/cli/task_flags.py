"""What the words of --data, --val-data and --reward stand for in the configuration; callbacks of click's."""

from __future__ import annotations

from pathlib import Path

import click

from rllm_core.contracts.chosen import FAMILY
from rllm_core.schema.section import Choice


def read_dataset(context: click.Context, parameter: click.Parameter, word: str | None) -> Choice | None:
    """A word with a file's ending is a file; any other is the name of a dataset, as is one that names a family."""
    ending = Path(word or "").suffix
    if word is None or not ending or FAMILY in word:
        return word
    return {"name": "jsonl" if ending == ".jsonl" else "hf", "path": word}


def read_rewards(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> list[Choice] | None:
    """``FILE.py:FUNCTION`` is a function of the reward ``python``; any other word is the name of a reward."""
    in_file = {word for word in words if word.partition(FAMILY)[0].endswith(".py")}
    return [{"name": "python", "function": word} if word in in_file else word for word in words] or None
