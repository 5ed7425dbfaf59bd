"""The page of plugins equals the index and the plugin specs, and the index accepts only valid entries."""

from __future__ import annotations

from typing import Any

import pytest
from package_index import INDEX, EntryError, entries, published
from plugins_page import page

from rllm_core.plugins.discovery import IndexEntry

SOUND: dict[str, Any] = {
    "name": "rllm-median",
    "version": "0.2.0",
    "summary": "Reward minus the group's median.",
    "repository": "https://github.com/you/rllm-median",
    "api": 1,
    "offers.estimator.median": "The median is the baseline.",
    "offers.command.median": "Shows medians.",
}


def toml(*plugins: dict[str, Any]) -> str:
    lines = [
        line for each in plugins for line in ("[[plugin]]", *(f"{key} = {value!r}" for key, value in each.items()))
    ]
    return "\n".join(lines)


def test_page_in_repository_equals_the_generated_page() -> None:
    written = INDEX.with_suffix(".md").read_text(encoding="utf-8")
    assert written == page(INDEX.read_text(encoding="utf-8")), "docs/plugins.md is stale: run `make docs`"


def test_a_plugin_of_others_is_a_row() -> None:
    link = "[`rllm-median`](https://github.com/you/rllm-median)"
    offers = "estimator `median`, command `median`"
    assert f"| {link} | 0.2.0 | {offers} | Reward minus the group's median. |" in page(toml(SOUND))


def test_a_plugin_of_others_is_in_the_index() -> None:
    entry = IndexEntry(**published(toml(SOUND), ())["rllm-median"])
    assert entry.offers["estimator"] == {"median": "The median is the baseline."}
    assert (entry.version, entry.repository) == ("0.2.0", SOUND["repository"])


def test_the_example_in_the_index_is_sound() -> None:
    lines = INDEX.read_text().partition("# [[plugin]]")[2].splitlines()
    example = "[[plugin]]\n" + "\n".join(line.removeprefix("# ") for line in lines)
    assert [each["name"] for each in entries(example)] == ["rllm-median"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Rllm_Median"),
        ("name", "rllm-verl"),
        ("version", "v0.2"),
        ("offers.estimators.median", "A sentence."),
        ("offers.estimator.no-name", "A sentence."),
        ("offers.estimator.median", "No full stop"),
        ("offers.command.median", 3),
        ("summary", "No full stop"),
        ("summary", "x" * 100 + "."),
        ("repository", "http://example.org"),
        ("api", 2),
        ("api", "1"),
        ("stars", 5),
    ],
)
def test_invalid_entry_is_rejected_by_name(field: str, value: object) -> None:
    with pytest.raises(EntryError, match=field.partition(".")[0]):
        entries(toml({**SOUND, field: value}), ours=("rllm-verl",))


@pytest.mark.parametrize("field", ["name", "version", "summary", "repository", "api", "offers"])
def test_an_entry_without_a_field_is_rejected(field: str) -> None:
    with pytest.raises(EntryError, match=f"`{field}` must be given"):
        entries(toml({key: value for key, value in SOUND.items() if key.partition(".")[0] != field}))


def test_names_are_unique_and_in_order() -> None:
    for names in (("rllm-b", "rllm-a"), ("rllm-a", "rllm-a")):
        with pytest.raises(EntryError, match="rllm-a"):
            entries(toml(*({**SOUND, "name": name} for name in names)))
