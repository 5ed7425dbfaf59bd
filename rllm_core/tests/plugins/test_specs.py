"""The examples in the docstrings of spec classes are what authors copy, so they run here."""

import pytest
from plugin_site import Site, plugin_example

from rllm_core.plugins.specs import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_example_of_a_kind_is_a_plugin(site: Site, kind: str) -> None:
    site.install("example", plugin_example(kind))

    registry = site.load()

    (entry,) = (entry for entry in registry.all(kind) if entry.distribution == "example")
    assert callable(entry.load()) or kind == "objective"


def test_every_kind_is_named_like_its_record() -> None:
    assert {kind: entry.record.kind for kind, entry in KINDS.items()} == {kind: kind for kind in KINDS}
