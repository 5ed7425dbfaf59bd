"""Composes words and files for the backend `verl`, with the configuration that the installed verl ships."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import omegaconf
import pytest

from rllm.config.compose import Composed, compose
from rllm.config.layers import COMMAND_LINE, Layer, Tier, layer_from_dotted, layers_from_overrides
from rllm.planning.plan import RunPlan
from rllm.planning.planner import make_plan
from rllm_core.plugins.registry import Registry

OURS = frozenset({"rllm-verl", "rllm-local", "rllm", "rllm-estimators"})
Run = Callable[..., Composed]
Plan = Callable[..., RunPlan]
CASES = 2
"""Cases of a test that `make test` runs. One composition takes 0.3 s."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the further cases of tests that compose a configuration for each case as `long`."""
    seen: Counter[str] = Counter()
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if item.path.parent == Path(__file__).parent and "run" in fixtures and "compose_rows" not in fixtures:
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > CASES:
                item.add_marker(pytest.mark.long)


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
def run(registry: Registry) -> Run:
    """Compose words (``key=value``) and layers, in order; the backend is chosen beneath them.

    Words are composed once per process. `cache_clear` forgets all.
    """
    chosen = layer_from_dotted({"rllm.backend": "verl"}, COMMAND_LINE, Tier.COMMAND_LINE)

    def composed(*given: str | Layer) -> Composed:
        layers = [layers_from_overrides([each])[0] if isinstance(each, str) else each for each in given]
        return compose(registry, [chosen, *layers])

    of_words = lru_cache(composed)

    def run(*given: str | Layer) -> Composed:
        return (of_words if all(isinstance(each, str) for each in given) else composed)(*given)

    run.cache_clear = of_words.cache_clear  # type: ignore[attr-defined]
    return run


@pytest.fixture(autouse=True)
def _forget_patched(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep no composition across a test that patches something."""
    patches = {"monkeypatch", "run"} <= set(request.fixturenames)
    if patches:
        request.getfixturevalue("run").cache_clear()
    yield
    if patches:
        request.getfixturevalue("run").cache_clear()


@pytest.fixture(scope="session")
def plan(run: Run, registry: Registry) -> Plan:
    """The plan of such a run on the environment `sum`."""

    def planned(*given: str | Layer) -> RunPlan:
        return make_plan(run("rllm.env.name=sum", *given), registry)

    return planned
