"""The examples in the hooks' docstrings are what authors copy, so they run here."""

import inspect
import textwrap
import types

import pytest

from rllm_core.plugins import specs
from rllm_core.plugins.discovery import Candidate
from rllm_core.plugins.kinds import KINDS
from rllm_core.plugins.loading import load_records, new_manager


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_every_hook_is_a_working_plugin(kind: str) -> None:
    docstring = inspect.getdoc(getattr(specs, KINDS[kind].hook))
    assert docstring is not None
    _, _, example = docstring.partition("::\n")
    module = types.ModuleType("example")
    exec(textwrap.dedent(example), module.__dict__)
    candidate = Candidate(entry_point="example", distribution="example", version="1", load=lambda: module)

    records = load_records(new_manager(), candidate)

    (record,) = (each for each in records if type(each) is KINDS[kind].record)
    assert callable(record.load()) or kind == "objective"


def test_every_kind_is_named_like_its_record() -> None:
    assert {kind: entry.record.kind for kind, entry in KINDS.items()} == {kind: kind for kind in KINDS}
