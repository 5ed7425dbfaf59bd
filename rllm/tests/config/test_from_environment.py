"""Values of the process's environment may be secrets: they are used, and written down as the user wrote them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rllm.config.compose import Composed
from rllm.config.layers import Tier, layer_from_file, layers_from_overrides
from rllm.config.saved_config import save_config
from rllm.config.yaml_text import as_yaml
from rllm.planning.planner import make_plan
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

Compose = Callable[..., Composed]
SECRET = "sk-7f3a"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", SECRET)
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("STEPS", "7")


def _with(env_args: Any) -> dict[str, Any]:
    return {"rllm": {"env": {"name": "guess", "env_args": env_args}}}


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"key": "${oc.env:SECRET}"}, {"key": SECRET}),
        ({"key": "${oc.env:SECRET}", "header": "Bearer ${.key}"}, {"key": SECRET, "header": f"Bearer {SECRET}"}),
        ({"headers": ["a", {"b": "${oc.env:SECRET}"}]}, {"headers": ["a", {"b": SECRET}]}),
        ({"a": {"key": "${oc.env:SECRET}"}, "b": "${.a}"}, {"a": {"key": SECRET}, "b": {"key": SECRET}}),
        ({"key": "${oc.env:NONE,${oc.env:SECRET}}"}, {"key": SECRET}),
        ({"key": "${oc.env:EMPTY}", "price": r"\${x}"}, {"key": "", "price": "${x}"}),
    ],
)
def test_environment_values_apply_and_are_saved_unresolved(composed: Compose, given: Any, stored: Any) -> None:
    result = composed(_with(given))
    assert result.value("rllm.env.env_args") == stored
    assert result.printable_tree["rllm"]["env"]["env_args"] == given
    assert SECRET not in as_yaml(result.build_saved_config())


def test_other_interpolations_are_written_resolved(composed: Compose) -> None:
    result = composed(_with({"key": "${oc.env:SECRET}", "n": "${rllm.rollout.n}"}))
    assert result.printable_tree["rllm"]["env"]["env_args"] == {"key": "${oc.env:SECRET}", "n": 8}


@pytest.mark.parametrize("tier", [Tier.SAVED, Tier.USER])
def test_saved_text_resolves_in_a_different_environment(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: Tier
) -> None:
    first = composed(_with({"key": "${oc.env:SECRET}", "steps": "${oc.decode:${oc.env:STEPS}}"}))
    monkeypatch.setenv("STEPS", "9")
    again = composed(layer_from_file(save_config(first.build_saved_config(), tmp_path), tier=tier))
    assert again.value("rllm.env.env_args") == {"key": SECRET, "steps": 9}
    assert again.build_saved_config() == first.build_saved_config()


def test_native_shared_key_is_saved_unresolved_too(run_foreign: Compose) -> None:
    result = run_foreign(*layers_from_overrides(["rllm.trainer.total_epochs='${oc.decode:${oc.env:STEPS}}'"]))
    assert result.value("trainer.total_epochs") == 7
    assert result.printable_tree["trainer"]["total_epochs"] == "${oc.decode:${oc.env:STEPS}}"


@pytest.mark.parametrize(
    "wrong",
    [
        {"rllm": {"rollout": {"n": "${oc.env:SECRET}"}}},
        {"rllm": {"rollout": {"n": "Bearer ${oc.env:SECRET}"}}},
        {"rllm": {"rollout": {"n": "${oc.env:LONG}"}}},
        {"rllm": {"algorithm": {"adv_estimator": "${oc.env:SECRET}"}}},
    ],
)
def test_errors_show_what_was_given(
    composed: Compose, registry: Registry, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    monkeypatch.setenv("LONG", SECRET * 30)
    with pytest.raises(ConfigError) as caught:
        make_plan(composed(wrong), registry)
    assert SECRET not in str(caught.value)
    assert "${oc.env:" in str(caught.value)
