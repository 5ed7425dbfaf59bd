"""Keys of a backend that nothing acts on, and losses that only some backends can compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import Field

from rllm_core.contracts.backend import Backend, BackendPlugin, Capabilities, SharedKey
from rllm_core.contracts.loss import LossPlugin
from rllm_core.contracts.plugin import NoParams, Params
from rllm_core.errors import ConfigError
from rllm_core.plan import RunPlan
from rllm_core.plugins.registry import Registry

MakePlan = Callable[..., RunPlan]


class OwnSection(Params):
    name: str = Field("m", description="Nothing.")
    resume: bool = Field(False, description="Nothing.")
    n: int = Field(8, description="Nothing.")
    rate: float = Field(0.1, description="Nothing.")


class OtherSection(Params):
    rate: float = Field(0.1, description="Nothing.")


class Sections(Params):
    own: OwnSection = Field(default_factory=OwnSection, description="Nothing.")
    other: OtherSection = Field(default_factory=OtherSection, description="Nothing.")


@pytest.fixture
def make(plan: MakePlan, registry: Registry) -> MakePlan:
    """Plans with a backend of which many keys are idle, and a loss that another backend can compute."""
    registry.add(
        BackendPlugin(
            name="able",
            summary="For tests.",
            params=Sections,
            load=lambda: Backend,
            model_key="own.name",
            shared_keys=(SharedKey(native="own.n", rllm="rllm.rollout.n"),),
            idle_keys={
                "own.resume": "Use --resume.",
                "own.n": "Never said.",
                "other.*": "Use own.rate.",
                "data.*": "Never said.",
            },
            capabilities=Capabilities(custom_losses=True, columns=frozenset({"old_logprobs"})),
        )
    )
    registry.add(
        BackendPlugin(
            name="far",
            summary="For tests.",
            params=NoParams,
            load=lambda: Backend,
            capabilities=Capabilities(
                custom_losses=True, installed_losses_only=True, columns=frozenset({"old_logprobs"})
            ),
        )
    )
    for name, only_on in (("elsewhere", {"first", "second"}), ("here", {"able", "far"})):
        registry.add(
            LossPlugin(
                name=name,
                summary="For tests.",
                params=NoParams,
                load=lambda: lambda inputs, params: inputs.logprobs,
                only_on=frozenset(only_on),
            )
        )
    return lambda settings: plan({"rllm.backend": "able"} | settings)


@pytest.mark.parametrize(
    ("key", "value", "instead"), [("own.resume", True, "Use --resume."), ("other.rate", 0.2, "Use own.rate.")]
)
def test_a_users_value_under_an_idle_key_stops_the_run(make: MakePlan, key: str, value: Any, instead: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make({key: value})
    assert caught.value.message.startswith(f"`{key}` is ")
    assert caught.value.message.endswith(", and backend able does not act on it.")
    assert caught.value.hint == instead


@pytest.mark.parametrize(("key", "value"), [("own.n", 4), ("data.train_batch_size", 4), ("own.rate", 0.3)])
def test_shared_keys_those_of_the_core_and_others_are_not_idle(make: MakePlan, key: str, value: Any) -> None:
    make({key: value})


def test_a_loss_for_other_backends_is_refused_by_name(make: MakePlan) -> None:
    with pytest.raises(ConfigError) as caught:
        make({"rllm.algorithm.loss_fn": "elsewhere"})
    assert caught.value.message == (
        "Loss 'elsewhere' can only be computed by backend first or second, and this run has backend able."
    )


def test_a_loss_for_this_backend_is_taken(make: MakePlan) -> None:
    assert make({"rllm.algorithm.loss_fn": "here"}).losses.default.plugin.name == "here"


def test_a_loss_of_this_program_is_refused_where_losses_run_in_other_processes(make: MakePlan) -> None:
    """What `register_rllm_loss` in a script registers, other processes do not know."""
    with pytest.raises(ConfigError) as caught:
        make({"rllm.backend": "far", "rllm.algorithm.loss_fn": "here"})
    assert caught.value.message == (
        "Loss 'here' was registered by this program, and backend 'far' computes losses in other processes, which know "
        "what is installed alone."
    )
    assert "rllm plugins new NAME --kind loss" in caught.value.hint
