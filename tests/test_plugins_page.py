"""The page of plugins equals the index and the plugin specs, and the index accepts only valid entries."""

from __future__ import annotations

from typing import Any

import pytest
from plugins_page import INDEX, EntryError, entries, page

SOUND: dict[str, Any] = {
    "name": "rllm-median",
    "kinds": ["estimator", "command"],
    "summary": "Reward minus the group's median.",
    "repository": "https://github.com/you/rllm-median",
    "api": 1,
}


def toml(*plugins: dict[str, Any]) -> str:
    lines = [
        line for each in plugins for line in ("[[plugin]]", *(f"{key} = {value!r}" for key, value in each.items()))
    ]
    return "\n".join(lines).replace('"Reward minus the group\'s median."', '"Reward minus the group\'s median."')


def test_page_in_repository_equals_the_generated_page() -> None:
    written = INDEX.with_suffix(".md").read_text(encoding="utf-8")
    assert written == page(INDEX.read_text(encoding="utf-8")), "docs/plugins.md is stale: run `make docs`"


def test_a_plugin_of_others_is_a_row() -> None:
    link = "[`rllm-median`](https://github.com/you/rllm-median)"
    assert f"| {link} | estimator, command | Reward minus the group's median. | 1 |" in page(toml(SOUND))


def test_the_example_in_the_index_is_sound() -> None:
    lines = INDEX.read_text().partition("# [[plugin]]")[2].splitlines()
    example = "[[plugin]]\n" + "\n".join(line.removeprefix("# ") for line in lines)
    assert [each["name"] for each in entries(example)] == ["rllm-median"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Rllm_Median"),
        ("name", "rllm-verl"),
        ("kinds", []),
        ("kinds", ["estimators"]),
        ("summary", "No full stop"),
        ("summary", "x" * 100 + "."),
        ("repository", "http://example.org"),
        ("api", 2),
        ("api", "1"),
        ("stars", 5),
    ],
)
def test_invalid_entry_is_rejected_by_name(field: str, value: object) -> None:
    with pytest.raises(EntryError, match=field):
        entries(toml({**SOUND, field: value}), ours=("rllm-verl",))


@pytest.mark.parametrize("field", SOUND)
def test_an_entry_that_lacks_something_is_refused(field: str) -> None:
    with pytest.raises(EntryError, match=f"`{field}` must be given"):
        entries(toml({key: value for key, value in SOUND.items() if key != field}))


def test_names_are_unique_and_in_order() -> None:
    for names in (("rllm-b", "rllm-a"), ("rllm-a", "rllm-a")):
        with pytest.raises(EntryError, match="rllm-a"):
            entries(toml(*({**SOUND, "name": name} for name in names)))
