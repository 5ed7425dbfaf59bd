"""The pages of the kinds equal the contracts, hooks, plugin specs and contract tests."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from config_reference import DISTRIBUTIONS
from kind_pages import pages
from page_text import cell

from rllm_core.plugins.registry import Registry
from rllm_core.plugins.specs import KINDS

DIRECTORY = Path(__file__).parents[1] / "docs" / "reference"


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load(allow=DISTRIBUTIONS, environ={})


@pytest.fixture(scope="module")
def made(registry: Registry) -> dict[str, str]:
    return pages(registry)


@pytest.mark.parametrize("name", [*(f"{kind}.md" for kind in KINDS), "kinds.md"])
def test_page_in_repository_equals_the_generated_page(name: str, made: dict[str, str]) -> None:
    assert (DIRECTORY / name).read_text(encoding="utf-8") == made[name], (
        f"docs/reference/{name} is stale: run `make docs`"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_kind_page_has_our_plugins_with_options(kind: str, made: dict[str, str], registry: Registry) -> None:
    for entry in registry.all(kind):
        page = made[f"{kind}.md"]
        section = section_of(page, entry.name)
        (row,) = re.findall(rf"^\| (?:`|\[`){re.escape(entry.name)}`.*$", page.partition("\n###")[0], re.MULTILINE)
        assert cell(entry.plugin.summary) in row
        if kind != "backend":
            shared = re.findall(r"^It has the options of \[`(\w+)`\]", section, re.MULTILINE)
            section += "".join(section_of(page, name) for name in shared)
            assert [option for option in entry.plugin.params.model_fields if f"| `{option}` |" not in section] == []


def section_of(page: str, name: str) -> str:
    return page.partition(f"\n### `{name}`\n")[2].partition("\n##")[0]


@pytest.mark.parametrize("kind", KINDS)
def test_page_has_every_field_of_the_spec(kind: str, made: dict[str, str]) -> None:
    record = KINDS[kind].record
    section = made[f"{kind}.md"].partition(f"\n### `{record.__name__}`\n")[2].partition("\n##")[0]
    shared = made["kinds.md"].partition("\n## Fields of every plugin spec\n")[2]
    assert [field.name for field in fields(record) if f"| `{field.name}` |" not in section + shared] == []


def test_links_between_the_pages_lead_somewhere(made: dict[str, str]) -> None:
    for name, text in made.items():
        headings = {re.sub(r"[^\w -]", "", line.lstrip("# ")) for line in text.splitlines() if line.startswith("#")}
        for target in re.findall(r"\]\(([^)]*)\)", text):
            path, _, anchor = target.partition("#")
            assert (DIRECTORY / path).exists(), f"{name}: {target}"
            assert path or anchor in headings, f"{name}: {target}"


def test_other_packages_that_are_installed_change_nothing(made: dict[str, str]) -> None:
    more = Registry.load(allow=DISTRIBUTIONS, environ={})
    grpo = more.get("estimator", "grpo").plugin
    more.add(replace(grpo, name="another"), distribution="rllm-another")
    assert pages(more) == made
