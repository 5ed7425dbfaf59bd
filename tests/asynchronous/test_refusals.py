"""Settings that asynchronous training refuses, and settings that it makes itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import scripted_world
from expecting import check_error, check_values
from scripted_world import ahead

from rllm.cli.dry_run import batches_ahead
from rllm.planning.plan import RunPlan
from rllm_core.contracts.plugin import NoParams
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


@pytest.mark.parametrize(
    ("staleness", "code", "value"),
    [
        (-1, "wrong-value", "(from the test)"),
        (0.5, "fractional-staleness", "updates"),
        (1.5, "fractional-staleness", "updates"),
        (6, "staleness-too-large", "6 steps"),
        (7, "staleness-too-large", "6 steps"),
    ],
)
def test_bound_without_effect_is_refused(planned: Plan, staleness: float, code: str, value: str) -> None:
    key = f"{SECTION}.staleness_threshold"
    check_error(_read_refusal(planned, {f"{SECTION}.enable": True, key: staleness}), code, key, staleness, value)


@pytest.mark.parametrize(
    ("staleness", "above", "below"),
    [(0.5, "1 ", "0 "), (1.5, "2 ", "1 ")],
)
def test_fraction_of_an_update_suggests_nearest_integers(
    planned: Plan, staleness: float, above: str, below: str
) -> None:
    settings = {f"{SECTION}.enable": True, f"{SECTION}.staleness_threshold": staleness}
    check_values(_read_refusal(planned, settings).hint, f" {above}", f" {staleness}", f" {below}")


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


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        ("mini_batch_size", 32, "data.train_batch_size"),
        ("fwd_bwd_group_size", 4, "micro-batches"),
        ("trigger_parameter_sync_step", 2, "minibatches"),
        ("episode_offload_dir", "kept", "rllm.episode_logging"),
        ("trajectory_group_offload_dir", "kept", "rllm.record"),
    ],
)
def test_unused_keys_of_rllm_have_a_hint(planned: Plan, key: str, value: object, instead: str) -> None:
    error = _read_refusal(planned, {**ahead(1), f"{SECTION}.{key}": value})
    assert f"`{SECTION}.{key}`" in error.message
    assert instead in error.hint


def test_all_keys_of_rllm_accept_their_defaults(planned: Plan) -> None:
    section = {
        "mini_batch_size": 64,
        "fwd_bwd_group_size": None,
        "trigger_parameter_sync_step": 1,
        "partial_rollout": False,
        "episode_offload_dir": None,
        "trajectory_group_offload_dir": None,
    }
    planned({**ahead(1), **{f"{SECTION}.{key}": value for key, value in section.items()}})


@pytest.mark.parametrize("key", ["staleness_threshold", "partial_rollout"])
def test_a_key_without_the_switch_has_no_effect(planned: Plan, key: str) -> None:
    error = _read_refusal(planned, {f"{SECTION}.{key}": True if key == "partial_rollout" else 2})
    assert "has no effect" in error.message


def test_latest_weights_have_no_effect_in_synchronous_runs(planned: Plan) -> None:
    error = _read_refusal(planned, {f"{SECTION}.enable": True, f"{SECTION}.partial_rollout": True})
    check_error(error, "unused-key", f"{SECTION}.partial_rollout", "staleness_threshold is 0")


def test_only_the_switch_has_no_effect_and_warns(planned: Plan) -> None:
    plan = planned({f"{SECTION}.enable": True})
    assert any(f"{SECTION}.enable" in line and "staleness_threshold" in line for line in plan.warnings)
    assert plan.batches_ahead == 0


def test_waiting_groups_of_a_rejection_mode_reduce_the_bound(planned: Plan) -> None:
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


def test_a_run_that_only_validates_may_have_it_in_its_file(planned: Plan) -> None:
    plan = planned({**ahead(1), "rllm.trainer.val_only": True})
    assert any("nothing is trained" in line for line in plan.warnings)
    assert list(batches_ahead(plan)) == []


@pytest.fixture
def stage(world: Registry) -> Any:
    """Offers a stage `mine`."""

    def add(**fields: Any) -> None:
        class Mine:
            def __init__(self, context: Any, params: Any) -> None:
                pass

            async def __call__(self, step: Any) -> None:
                step.count("mine", 1.0)

        world.add(
            StagePlugin(
                name="mine",
                summary="For tests.",
                params=NoParams,
                load=lambda: Mine,
                reads=frozenset({"episodes"}),
                writes=frozenset({"episodes"}),
                **fields,
            )
        )

    return add


INSERTED = {"rllm.pipeline.insert": [{"stage": "mine", "after": "generate"}]}


def test_stage_among_rollout_stages_must_be_a_rollout_stage(planned: Plan, stage: Any) -> None:
    stage()
    error = _read_refusal(planned, {**ahead(1), **INSERTED})
    check_error(error, "stage-order", "'mine'", "'greedy_baseline'")


@pytest.mark.parametrize(("staleness", "is_rollout_stage"), [(0, False), (0, True), (2, True)])
def test_rollout_stage_runs_among_rollout_stages(run: Any, stage: Any, staleness: int, is_rollout_stage: bool) -> None:
    stage(is_rollout_stage=is_rollout_stage)
    made = run({**(ahead(staleness) if staleness else {}), **INSERTED})
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
    assert _correction(planned(settings)) == expected


def test_origin_of_the_correction_is_shown(planned: Plan) -> None:
    composed = planned(ahead(1)).composed
    for key, value in (("bypass_mode", False), ("tis_mode", "token")):
        assert composed.value(f"{CORRECTION}.{key}") == value
        assert composed.origin(f"{CORRECTION}.{key}") == f"{SECTION}.staleness_threshold"


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


def test_dry_run_of_synchronous_run_shows_no_batches_ahead(planned: Plan) -> None:
    assert list(batches_ahead(planned({}))) == []
