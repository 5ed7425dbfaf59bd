"""Composes words and files for the backend `verl`, with the configuration that the installed verl ships."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import omegaconf
import pytest

from rllm.config.compose import Composed, compose
from rllm.config.layers import COMMAND_LINE, Layer, Tier, layer_from_keys, layers_from_overrides
from rllm.config.paths import put_at, split_key
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm_core.plugins.registry import Registry
from rllm_verl.settings import VerlConfig

OURS = frozenset({"rllm-verl", "rllm-local", "rllm", "rllm-estimators"})
Run = Callable[..., Composed]
Change = Callable[..., VerlConfig]
Plan = Callable[..., RunPlan]


@pytest.fixture(scope="session", autouse=True)
def _parse_interpolations_once() -> Iterator[None]:
    """Keep the parse trees of interpolations: verl ships 260 of them, and parsing took a third of a composition."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (omegaconf.base, omegaconf._utils):
            patch.setattr(module, "parse", lru_cache(maxsize=2000)(omegaconf.grammar_parser.parse))
        yield


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry.load(allow=OURS, environ={})


@pytest.fixture(scope="session")
def backend(registry: Registry) -> Any:
    """The plugin spec."""
    return registry.get("backend", "verl").plugin


@pytest.fixture(scope="session")
def run(registry: Registry) -> Run:
    """Compose words (``key=value``) and layers, in order; the backend is chosen below them.

    One composition takes 0.4 s. Words are composed once per process, so what they decide must not be patched.
    """
    chosen = layer_from_keys({"rllm.backend": "verl"}, COMMAND_LINE, Tier.COMMAND_LINE)

    def compose_layers(*given: str | Layer) -> Composed:
        layers = [layers_from_overrides([each])[0] if isinstance(each, str) else each for each in given]
        return compose(registry, [chosen, *layers])

    of_words = lru_cache(compose_layers)

    def run(*given: str | Layer) -> Composed:
        return (of_words if all(isinstance(each, str) for each in given) else compose_layers)(*given)

    return run


@pytest.fixture(scope="session")
def change(run: Run) -> Change:
    """Replace values in the configuration of a profile, for checks of values. Nothing is composed or derived again."""

    def change_values(profile: str | None, values: Mapping[str, Any]) -> VerlConfig:
        tree = run(*[f"rllm.profile={profile}"] * bool(profile)).backend_config.model_dump()
        for key, value in values.items():
            put_at(tree, split_key(key), value)
        return VerlConfig.model_validate(tree)

    return change_values


@pytest.fixture(scope="session")
def plan(run: Run, registry: Registry) -> Plan:
    """The plan of such a run on the environment `sum`."""

    def make_run_plan(*given: str | Layer) -> RunPlan:
        return make_plan(run("rllm.env.name=sum", *given), registry)

    return make_run_plan
