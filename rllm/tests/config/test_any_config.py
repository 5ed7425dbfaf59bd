"""Whatever is given as a configuration: it makes a plan, or raises the one error type for configurations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from rllm.config.compose import compose
from rllm.config.keys import known_keys
from rllm.config.layers import Layer
from rllm.planning.planner import make_plan
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.plugins.specs import KINDS
from rllm_core.schema.run_config import RunConfig

INTERPOLATIONS = [
    *("${", "${}", "${rllm}", "${.n}", "${..}", "${a.b}", "${model}", "${nope:1}", "${oc.env:HOME}"),
    *("${oc.decode:'{a: 1}'}", "${oc.create:{a: 1}}", "${oc.dict.values:data}", "${oc.select:model,3}"),
]
TEXTS = ["???", "", "guess", "local", "needy", "1e-4", "\x00", "a/b/c", "/", *INTERPOLATIONS]

core_alone = Registry.load(allow=[], environ={})
of_plugins = [each.name for kind in KINDS for each in core_alone.all(kind)]
keys = {name for path in known_keys(RunConfig) for name in path} | {"model", "training", "name", "stage", "after"}
names = st.sampled_from(sorted(keys)) | st.text(max_size=3)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(2**4097)
scalars |= st.sampled_from([*TEXTS, *of_plugins])
json_like = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
paths = st.sampled_from([*known_keys(RunConfig), ("model",), ("model", "name"), ("training", "schedule")])


@pytest.fixture
def environment() -> dict[str, Any]:
    return {"defaults": {"rllm.rollout.n": 3}, "recipes": {"local/big": {"training.learning_rate": 0.5}}}


def _is_planned_or_refused(registry: Registry, config: Any) -> None:
    try:
        plan = make_plan(compose(registry, [Layer("my.yaml", config)]), registry)
    except ConfigError as error:
        assert error.message
    else:
        assert plan.config.rllm.backend


@given(config=json_like)
@example(config={"rllm": {"rollout": {"n": 2**4097}}})
def test_any_tree_is_planned_or_refused(installed: Registry, config: Any) -> None:
    _is_planned_or_refused(installed, config if isinstance(config, dict) else {"rllm": config})


@given(values=st.lists(st.tuples(paths, json_like), max_size=4))
def test_any_values_of_keys_are_planned_or_rejected(installed: Registry, values: list[Any]) -> None:
    config: dict[str, Any] = {}
    for (*at, last), value in values:
        node = config
        for part in at:
            node[part] = node[part] if isinstance(node.get(part), dict) else {}
            node = node[part]
        node[last] = value
    _is_planned_or_refused(installed, config)
