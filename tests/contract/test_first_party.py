"""The index of distributions to install equals the one made from the plugin specs."""

from __future__ import annotations

from first_party import page

from rllm_core.plugins.first_party import INDEX


def test_the_index_in_the_core_is_the_one_made_from_the_records() -> None:
    assert INDEX.read_text(encoding="utf-8") == page(), "first_party.json is stale: run `make docs`"
