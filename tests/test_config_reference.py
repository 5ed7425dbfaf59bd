"""docs/reference/config.md equals the schemas."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_reference import DISTRIBUTIONS, reference_page

from rllm.inspection.describe import fill_descriptions
from rllm.planning.unused_keys import core_keys
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "config.md"
KEYS = list(core_keys(RunConfig()))
fill_descriptions(RunConfig)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load(allow=DISTRIBUTIONS, environ={})


@pytest.fixture(scope="module")
def page(registry: Registry) -> str:
    return reference_page(registry)


def paragraphs(page: str, heading: str) -> list[str]:
    """Return the paragraphs below a heading, up to the next one."""
    return page.partition(f"\n{heading}\n\n")[2].partition("\n#")[0].strip().split("\n\n")


def facts(page: str, key: str) -> str:
    """Return the type, the default and the readers of a key."""
    return paragraphs(page, f"### `{key}`")[-1]


def test_page_in_repository_equals_the_generated_page(page: str) -> None:
    assert PAGE.read_text(encoding="utf-8") == page, "docs/reference/config.md is stale: run `make docs`"


def test_page_has_every_key_with_type_and_meaning(page: str) -> None:
    for key in KEYS:
        meaning, what = paragraphs(page, f"### `{key.dotted}`")
        assert len(meaning) > 10, key.dotted
        assert meaning == " ".join(key.field.description.split())
        kind, default, *_ = what.split(" · ")
        assert kind, key.dotted
        assert default.startswith("default `"), key.dotted
        before = page.partition(f"\n### `{key.dotted}`\n")[0]
        assert before.rpartition("\n## ")[2].partition("\n")[0] == f"`{'.'.join(key.path[:-1])}`"


def test_it_lists_the_readers_of_a_key(page: str) -> None:
    assert "read by loss `ppo`, loss `cispo`" in facts(page, "rllm.algorithm.eps_clip")
    assert facts(page, "rllm.algorithm.adv_estimator").endswith("read by stage `advantages`")
    assert facts(page, "rllm.algorithm.kl_beta").endswith("backend `local`, backend `tinker`, backend `verl`")
    assert facts(page, "rllm.agent.engine_args").endswith("no plugin in this repository reads it")
    assert "· `true` warned about: " in facts(page, "rllm.algorithm.use_rllm")
    assert "· rejected: " in facts(page, "rllm.filter_token_mismatch")
    assert "· `per_step` rejected: " in facts(page, "rllm.stepwise_advantage.mode")
    assert facts(page, "rllm.rollout.n_val") == "whole number > 0 · default `1`", "the core acts"


@pytest.mark.parametrize("key", ["model.name", "training.learning_rate", "local.kv_cache_gib"])
def test_it_has_the_keys_of_the_local_backend(key: str, page: str) -> None:
    section = page.partition("\n## Backend `local`\n")[2].partition("\n## ")[0]
    assert f"\n### `{key}`\n" in section


def test_other_packages_that_are_installed_change_nothing(page: str, registry: Registry) -> None:
    from dataclasses import replace

    more = Registry.load(allow=DISTRIBUTIONS, environ={})
    grpo = more.get("estimator", "grpo").plugin
    more.add(replace(grpo, name="another"), distribution="rllm-another")
    assert reference_page(more) == page


def test_every_key_meaning_ends_like_a_sentence() -> None:
    assert [key.dotted for key in KEYS if not (key.field.description or "").endswith(".")] == []
