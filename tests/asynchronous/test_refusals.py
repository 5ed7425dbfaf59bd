"""Settings that asynchronous training refuses, and settings that it makes itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import scripted_world
from expecting import check_error
from scripted_world import ahead

from rllm.cli.dry_run import batches_ahead
from rllm.planning.plan import RunPlan
from rllm_core.contracts.stage import StagePlugin
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

Plan = Callable[[Mapping[str, Any]], RunPlan]
SECTION = "rllm.async_training"
CORRECTION = "rllm.algorithm.rollout_correction"


def _read_refusal(planned: Plan, settings: Mapping[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        planned(settings)
    return caught.value


STALENESS = f"{SECTION}.staleness_threshold"


@pytest.mark.parametrize(
    ("settings", "code", "values"),
    [
        ({STALENESS: -1}, "wrong-value", [STALENESS, -1, "(from the test)"]),
        ({STALENESS: 0.5}, "fractional-staleness", [STALENESS, 0.5, "updates", " 1 ", " 0 "]),
        ({STALENESS: 1.5}, "fractional-staleness", [STALENESS, 1.5, "updates", " 2 ", " 1 "]),
        ({STALENESS: 6}, "staleness-too-large", [STALENESS, 6, "6 steps"]),
        ({STALENESS: 7}, "staleness-too-large", [STALENESS, 7, "6 steps"]),
        ({STALENESS: 2, f"{SECTION}.enable": False}, "unused-key", [STALENESS, "has no effect"]),
        ({f"{SECTION}.partial_rollout": True, f"{SECTION}.enable": False}, "unused-key", ["has no effect"]),
        ({f"{SECTION}.partial_rollout": True}, "unused-key", ["staleness_threshold is 0"]),
        ({STALENESS: 1, f"{SECTION}.mini_batch_size": 32}, "unused-key", ["data.train_batch_size"]),
        ({STALENESS: 1, f"{SECTION}.fwd_bwd_group_size": 4}, "unused-key", ["micro-batches"]),
        ({STALENESS: 1, f"{SECTION}.trigger_parameter_sync_step": 2}, "unused-key", ["minibatches"]),
        ({STALENESS: 1, f"{SECTION}.episode_offload_dir": "kept"}, "unused-key", ["rllm.episode_logging"]),
        ({STALENESS: 1, f"{SECTION}.trajectory_group_offload_dir": "kept"}, "unused-key", ["rllm.record"]),
    ],
)
def test_setting_without_effect_is_refused(
    planned: Plan, settings: Mapping[str, Any], code: str, values: list[Any]
) -> None:
    check_error(_read_refusal(planned, {f"{SECTION}.enable": True, **settings}), code, *values)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_staleness_hint_suggests_accepted_value(planned: Plan, steps: int) -> None:
    settings = {f"{SECTION}.enable": True, "rllm.trainer.total_batches": steps}
    hint = _read_refusal(planned, settings | {f"{SECTION}.staleness_threshold": 3}).hint
    suggested = [int(value) for value in re.findall(r"\b\d\b", hint)]
    assert suggested
    for value in suggested:
        planned(settings | {f"{SECTION}.staleness_threshold": value})


def test_bound_beyond_the_epochs_is_refused_with_tasks(run: Any) -> None:
    # 12 tasks, 4 at a time.
    with pytest.raises(ConfigError, match="the run has 3 steps"):
        run({**ahead(3), "rllm.trainer.total_batches": -1, "rllm.trainer.total_epochs": 1})


def test_only_the_switch_has_no_effect_and_warns(planned: Plan) -> None:
    plan = planned({f"{SECTION}.enable": True})
    assert any(f"{SECTION}.enable" in line and "staleness_threshold" in line for line in plan.warnings)
    assert plan.batches_ahead == 0


def test_waiting_groups_of_rejection_modes_reduce_the_bound(planned: Plan) -> None:
    dynamic = {"rllm.rejection_sample.enable": True, "rllm.rejection_sample.mode": "dynamic"}
    assert [planned({**ahead(s), **dynamic}).batches_ahead for s in (1, 3)] == [0, 2]
    assert any("dynamic" in line and "ahead" in line for line in planned({**ahead(1), **dynamic}).warnings)


@pytest.mark.parametrize(
    ("overlap", "partial", "code"),
    [
        ((), False, "no-overlap"),
        ((), True, "no-overlap"),
        (("latest",), False, "weights-not-pinned"),
        (("fixed",), True, "unused-key"),
    ],
)
def test_what_a_backend_cannot_do(
    planned: Plan, world: Registry, overlap: tuple[Any, ...], partial: bool, code: str
) -> None:
    scripted_world.add_to(world, "limited", frozenset(overlap))
    check_error(_read_refusal(planned, {**ahead(1, partial), "rllm.backend": "limited"}), code, "'limited'")


def test_run_that_only_validates_may_set_staleness(planned: Plan) -> None:
    plan = planned({**ahead(1), "rllm.trainer.val_only": True})
    assert any("nothing is trained" in line for line in plan.warnings)
    assert list(batches_ahead(plan)) == list(batches_ahead(planned({}))) == []


@pytest.fixture
def stage(world: Registry) -> Any:
    """Offers a stage `mine`."""

    class Mine:
        def __init__(self, context: Any, params: Any) -> None:
            pass

        async def __call__(self, step: Any) -> None:
            step.count("mine", 1.0)

    def add(**fields: Any) -> None:
        fields |= {"reads": frozenset({"episodes"}), "writes": frozenset({"episodes"})}
        world.add(StagePlugin(name="mine", summary="For tests.", load=lambda: Mine, **fields))

    return add


INSERTED = {"rllm.pipeline.insert": [{"stage": "mine", "after": "generate"}]}


@pytest.mark.parametrize("is_rollout_stage", [False, True])
def test_only_rollout_stage_runs_among_rollout_stages(
    planned: Plan, run: Any, stage: Any, is_rollout_stage: bool
) -> None:
    stage(is_rollout_stage=is_rollout_stage)
    if not is_rollout_stage:
        check_error(_read_refusal(planned, {**ahead(1), **INSERTED}), "stage-order", "'mine'", "'greedy_baseline'")
    made = run({**(ahead(2) if is_rollout_stage else {}), **INSERTED})
    assert [step.metrics["mine"] for step in made.steps] == [1.0] * 6


# Correction


def _correction(plan: RunPlan) -> tuple[Any, Any]:
    section = plan.config.rllm.algorithm.rollout_correction
    return section.bypass_mode, section.tis_mode


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (None, None)),
        ({f"{SECTION}.enable": True}, (None, None)),
        (ahead(1), (False, "token")),
        ({**ahead(1), f"{CORRECTION}.tis_mode": "sequence"}, (False, "sequence")),
        ({**ahead(1), f"{CORRECTION}.bypass_mode": True}, (True, None)),
        ({**ahead(1), f"{CORRECTION}.tis_mode": None}, (False, None)),
        ({**ahead(1), "rllm.algorithm.loss_fn": "dppo_tv"}, (False, None)),
    ],
)
def test_old_tokens_are_corrected_by_default(
    planned: Plan, settings: Mapping[str, Any], expected: tuple[Any, Any]
) -> None:
    plan = planned(settings)
    assert _correction(plan) == expected
    if settings == ahead(1):
        assert plan.composed.origin(f"{CORRECTION}.tis_mode") == f"{SECTION}.staleness_threshold"


def test_the_update_is_corrected(run: Any) -> None:
    plain, made = run({}, "plain"), run(ahead(1), "ahead")
    assert not plain.backend.context.recomputes_old_logprobs
    assert made.backend.context.recomputes_old_logprobs


@pytest.mark.parametrize("loss", ["reinforce", "cross_entropy"])
def test_a_loss_without_a_ratio_needs_the_correction(planned: Plan, loss: str) -> None:
    planned({**ahead(1), "rllm.algorithm.loss_fn": loss})
    for key, value, other in (("tis_mode", None, "bypass_mode"), ("bypass_mode", True, "tis_mode")):
        without = {f"{CORRECTION}.{key}": value}
        error = _read_refusal(planned, {**ahead(1), "rllm.algorithm.loss_map": {"judge": loss}, **without})
        check_error(error, "loss-without-ratio", repr(loss), "'judge'")
        assert f"{CORRECTION}.{key}" in error.hint
        assert other not in error.hint
    planned({"rllm.algorithm.loss_fn": loss})


# Output of a run

OF_TRAINER = "the trainer's, weighted by their ratio to the sampler's, per token"


@pytest.mark.parametrize(
    ("settings", "weights", "old"),
    [
        (ahead(2), ".* 2 steps", OF_TRAINER),
        (ahead(2, partial=True), ".*latest", OF_TRAINER),
        ({**ahead(1), f"{CORRECTION}.bypass_mode": True}, ".* 1 step", "the sampler's, as is"),
    ],
)
def test_dry_run_shows_batches_ahead(planned: Plan, settings: Mapping[str, Any], weights: str, old: str) -> None:
    text = "\n".join(batches_ahead(planned(settings)))
    assert "generate, impute_names, greedy_baseline" in text
    assert re.search(f"^ *weights +{weights}", text, re.MULTILINE)
    assert re.search(f"^ *old log-probs +{old}", text, re.MULTILINE)
