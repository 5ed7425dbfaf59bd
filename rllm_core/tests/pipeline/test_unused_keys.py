"""Keys of a backend that nothing acts on, and losses that only some backends can compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from expecting import check_values, expect_error
from pydantic import Field

from rllm.planning.plan import RunPlan
from rllm_core.contracts import Backend, Capabilities, DerivedKey, Params, SharedKey
from rllm_core.errors import ConfigError

MakePlan = Callable[..., RunPlan]


class OwnSection(Params):
    name: str = Field("m", description="Nothing.")
    resume: bool = Field(False, description="Nothing.")
    n: int = Field(8, description="Nothing.")
    rate: float = Field(0.1, description="Nothing.")
    twice: int | None = Field(None, description="Nothing.")


class ServingSection(Params):
    clip: float = Field(0.2, description="Nothing.")


class OtherSection(Params):
    rate: float = Field(0.1, description="Nothing.")


class Sections(Params):
    own: OwnSection = Field(default_factory=OwnSection, description="Nothing.")
    serves: ServingSection = Field(default_factory=ServingSection, description="Nothing.")
    other: OtherSection = Field(default_factory=OtherSection, description="Nothing.")


@pytest.fixture
def make(plan: MakePlan, offer: Any) -> MakePlan:
    """Plans with a backend of which many keys are idle, and a loss that another backend can compute."""
    columns = frozenset({"old_logprobs"})
    offer(
        "backend",
        "able",
        Backend,
        params=Sections,
        model_key="own.name",
        shared_keys=(SharedKey(native="own.n", rllm="rllm.rollout.n"),),
        derived_keys=(DerivedKey(native="own.twice", of=("rllm.rollout.n",), derive=lambda n: 2 * n),),
        column_sections={"values": "serves"},
        unused_keys={
            "own.twice": "Use rllm.rollout.n.",
            "own.resume": "Use --resume.",
            "own.n": "Never said.",
            "other.*": "Use own.rate.",
            "data.*": "Never said.",
        },
        capabilities=Capabilities(custom_losses=True, columns=columns),
    )
    far = Capabilities(custom_losses=True, installed_losses_only=True, columns=columns)
    offer("backend", "far", Backend, capabilities=far)
    offer("loss", "here")
    return lambda settings: plan({"rllm.backend": "able"} | settings)


@pytest.mark.parametrize(
    ("key", "value", "default", "instead"),
    [("own.resume", True, False, "Use --resume."), ("other.rate", 0.2, 0.1, "Use own.rate.")],
)
def test_values_of_idle_keys_stop_the_run(make: MakePlan, key: str, value: Any, default: Any, instead: str) -> None:
    with expect_error(ConfigError, "unused-key", key, instead):
        make({key: value})
    (line,) = make({key: default}).warnings
    check_values(line, f"`{key}` is ", "default", "backend able")


def test_idle_key_may_equal_a_derived_value(make: MakePlan) -> None:
    """0 is not false, and what is derived from a user's value is what counts."""
    with expect_error(ConfigError, "unused-key"):
        make({"own.twice": 16, "rllm.rollout.n": 4})
    assert len(make({"own.twice": 16}).warnings) == 1
    assert len(make({"own.twice": 8, "rllm.rollout.n": 4}).warnings) == 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"own.resume": True}, ("unused-key", "`own.resume`", "my.yaml")),
        (
            {"rllm.rejection_sample.mode": "episode"},
            ("unused-key", "`rllm.rejection_sample.mode`", '"episode"', "my.yaml", "rllm.rejection_sample.enable"),
        ),
        (
            {"rllm.rejection_sample.min_trajs_per_group": 5, "rllm.rejection_sample.enable": True}
            | {"rllm.rejection_sample.mode": "episode"},
            ("unused-key", "`rllm.rejection_sample.min_trajs_per_group`", "my.yaml"),
        ),
        ({"rllm.env.env_args": {"size": 3}}, ("unused-key", "rllm.env.env_args", "'size'")),
        ({"serves.clip": 0.5}, ("unused-key", "`serves.clip`", "0.5", "my.yaml")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unused_keys_may_be_warnings(make: MakePlan, settings: dict[str, Any], problem: tuple[str, ...]) -> None:
    with expect_error(ConfigError, *problem) as caught:
        make(settings)
    (line,) = make(settings | {"rllm.unused_keys": "warn"}).warnings
    assert line == str(caught.value)


def test_unsupported_value_is_always_an_error(make: MakePlan) -> None:
    with pytest.raises(ConfigError, match="which is not supported"):
        make(
            {"rllm.unused_keys": "warn", "rllm.stepwise_advantage.mode": "per_step"}
            | {"rllm.stepwise_advantage.enable": True}
        )


@pytest.mark.parametrize(("key", "value"), [("own.n", 4), ("data.train_batch_size", 4), ("own.rate", 0.3)])
def test_shared_and_core_keys_are_not_idle(make: MakePlan, key: str, value: Any) -> None:
    make({key: value})


def test_in_process_loss_fails_with_losses_in_workers(make: MakePlan) -> None:
    """What `register_rllm_loss` in a script registers, other processes do not know."""
    with expect_error(ConfigError, "plugin-of-other-program", "'here'", "'far'", "--kind"):
        make({"rllm.backend": "far", "rllm.algorithm.loss_fn": "here"})
