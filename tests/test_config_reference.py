"""docs/reference/config.md is what the schemas say."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_reference import DISTRIBUTIONS, reference_page

from rllm_core.planning.unused_keys import Key, core_keys
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "config.md"
KEYS = list(core_keys(RunConfig()))


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load(allow=DISTRIBUTIONS, environ={})


@pytest.fixture(scope="module")
def page(registry: Registry) -> str:
    return reference_page(registry)


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """The rows of the table under a heading, by their first cell."""
    section = page.partition(f"{heading}\n")[2].partition("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.replace("\\|", "¦").strip("| ").split(" | ")] for line in lines]
    return {line[0].strip("`"): line[1:] for line in cells}


def test_the_page_in_the_repository_is_the_one_made_from_the_schemas(page: str) -> None:
    assert PAGE.read_text(encoding="utf-8") == page, "docs/reference/config.md is stale: run `make docs`"


@pytest.mark.parametrize("key", KEYS, ids=[key.dotted for key in KEYS])
def test_every_key_is_on_the_page_with_its_type_and_meaning(key: Key, page: str) -> None:
    table = rows(page, f"## `{'.'.join(key.path[:-1])}`")
    kind, default, meaning, *_ = table[key.path[-1]]
    assert kind
    assert default.startswith("`")
    assert len(meaning) > 10
    assert meaning == " ".join(key.field.description.replace("|", "¦").split())


def test_it_says_who_acts_on_a_key(page: str) -> None:
    algorithm, flags = rows(page, "## `rllm.algorithm`"), rows(page, "## `rllm`")
    assert algorithm["eps_clip"][-1].startswith("loss `ppo`, loss `cispo`")
    assert algorithm["adv_estimator"][-1] == "stage `advantages`"
    assert algorithm["kl_beta"][-1] == "backend `local`, backend `tinker`, backend `verl`"
    assert rows(page, "## `rllm.agent`")["engine_args"][-1] == "nothing in this repository"
    assert algorithm["use_rllm"][-1].startswith("`true` warned about: ")
    assert flags["filter_token_mismatch"][-1].startswith("refused: ")
    assert rows(page, "## `rllm.stepwise_advantage`")["mode"][-1].startswith("`per_step` refused: ")
    assert len(rows(page, "## `rllm.rollout`")["n_val"]) == 3, "the core acts, and the last cell is empty"


def test_it_has_the_keys_of_the_local_backend(page: str) -> None:
    assert {"model.name", "training.learning_rate", "local.kv_cache_gib"} <= rows(page, "## Backend `local`").keys()


def test_other_packages_that_are_installed_change_nothing(page: str, registry: Registry) -> None:
    from dataclasses import replace

    more = Registry.load(allow=DISTRIBUTIONS, environ={})
    grpo = more.get("estimator", "grpo").plugin
    more.add(replace(grpo, name="another"), distribution="rllm-another")
    assert reference_page(more) == page


def test_every_key_has_a_meaning_that_ends_like_a_sentence() -> None:
    assert [key.dotted for key in KEYS if not (key.field.description or "").endswith(".")] == []
