"""The content of a task as text. The text is the same in every process, also for values that JSON does not have."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from rllm_core.data.types import Task

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The part of an object's text that differs between processes."""
DATA_SOURCE = "data_source"


@runtime_checkable
class HasContent(Protocol):
    """A task with more or less content than its data, such as a task of the dataset ``stored``."""

    def content(self) -> Mapping[str, Any]:
        """Return everything that decides the task's rollouts, except its id and its data source."""
        ...


def content_of(task: Task) -> dict[str, Any]:
    """Return a task's content: its data, unless it has its own `content`."""
    return dict(task.content() if type(task) is not Task and isinstance(task, HasContent) else task.data)


def hashes_of(task: Task) -> tuple[bytes, bytes]:
    """Return hashes of a task's content without its data source, which may be a file's name, and of its data source."""
    content = content_of(task)
    sources = [task.data_source, content.pop(DATA_SOURCE, None)]
    return hash_of(content), hash_of(sources)


def hash_of(value: Any) -> bytes:
    """Return a hash of 8 bytes. Mappings with the same items in a different order have the same hash."""
    return hashlib.blake2b(as_text(value).encode("utf-8", "surrogatepass"), digest_size=8).digest()


def as_text(value: Any) -> str:
    """Return a value as JSON, with a text for each part that JSON does not have."""
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, default=as_json_value)
    except (TypeError, ValueError):  # keys without an order, or an object that contains itself
        return ADDRESS.sub("", repr(value))


def as_json_value(value: Any) -> Any:
    """Convert a value that JSON does not have to a JSON value, or to a container of more values."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(map(as_text, value))
    if hasattr(value, "tolist"):  # arrays, tensors and their numbers
        return value.tolist()
    if hasattr(value, "tobytes"):  # images
        return [str(type(value)), hashlib.blake2b(value.tobytes()).hexdigest()]
    if repr(value) == object.__repr__(value) and hasattr(value, "__dict__"):
        return [str(type(value)), vars(value)]
    return ADDRESS.sub("", str(value))
