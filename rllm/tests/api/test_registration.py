"""Decorators for notebooks and scripts, and functions that give back what is registered or installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expecting import expect_error

from rllm_core import (
    get_rllm_adv_estimator,
    register_rllm_adv_estimator,
    register_rllm_estimator,
    register_rllm_grouping,
    register_rllm_loss,
    register_rllm_rejection,
    register_rllm_sampler,
)
from rllm_core.algorithms.rejection import KeepAll
from rllm_core.contracts.estimator import AdvantageInput, Advantages
from rllm_core.contracts.params import NoParams, Params
from rllm_core.contracts.sampler import Sampler
from rllm_core.errors import ConfigError, PluginError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.algorithm_sections import AlgorithmSection

pytestmark = pytest.mark.usefixtures("nothing_stays_registered")

REWARDS = [np.array([1.0, 0.0, 0.0, 1.0]), np.array([2.0, 4.0])]
EVERY_DECORATOR = {
    "estimator": register_rllm_adv_estimator,
    "new estimator": register_rllm_estimator,
    "loss": register_rllm_loss,
    "grouping": register_rllm_grouping,
    "rejection": register_rllm_rejection,
    "sampler": register_rllm_sampler,
}


class Strength(Params):
    strength: float = 2.0


def by_batch_mean(rewards: list[Any], algorithm_config: Any, **kwargs: Any) -> Any:
    """Reward minus the mean of the role.

    A second paragraph.
    """
    mean = np.concatenate(rewards).mean()
    advantages = [array - mean for array in rewards]
    return advantages, advantages


def record_of(kind: str, name: str) -> Any:
    return Registry.load(allow=[]).get(kind, f"in-process/{name}").plugin


def lists(part: Any) -> list[list[float]]:
    return [np.asarray(array).tolist() for array in part]


def test_decorated_function_stays_the_same_function() -> None:
    assert register_rllm_adv_estimator("mine")(by_batch_mean) is by_batch_mean
    assert get_rllm_adv_estimator("mine") is by_batch_mean
    assert get_rllm_adv_estimator("in-process/mine") is by_batch_mean
    with expect_error(PluginError, "bad-plugin-spec"):
        get_rllm_adv_estimator(None)  # type: ignore[arg-type]
    with expect_error(PluginError, "unknown-plugin", "'grpo'"):
        get_rllm_adv_estimator("grop")


def test_classic_estimator_has_a_plugin_spec() -> None:
    register_rllm_adv_estimator("plain")(by_batch_mean)
    plain = record_of("estimator", "plain")
    assert (plain.level, plain.scope, plain.params) == ("trajectory", "group", NoParams)
    assert (plain.default_loss, plain.needs, plain.config_keys) == (None, frozenset(), frozenset())
    assert plain.summary == "Reward minus the mean of the role."

    register_rllm_adv_estimator(
        "rich",
        scope="group",
        default_loss="ppo",
        needs={"ref_logprobs"},
        config_keys={"rllm.algorithm.norm_adv_by_std_in_grpo"},
        summary="Mine.",
    )(by_batch_mean)
    rich = record_of("estimator", "rich")
    assert (rich.scope, rich.default_loss, rich.summary) == ("group", "ppo", "Mine.")
    assert rich.needs == frozenset({"ref_logprobs"})
    assert rich.config_keys == frozenset({"rllm.algorithm.norm_adv_by_std_in_grpo"})


def test_a_notebook_s_cell_may_be_run_again() -> None:
    cell = "@register_rllm_adv_estimator('mine')\ndef mine(rewards, algorithm_config, **kwargs):\n    return {result}"
    names: dict[str, Any] = {"__name__": "__main__", "register_rllm_adv_estimator": register_rllm_adv_estimator}
    exec(cell.format(result="1"), names)
    exec(cell.format(result="2"), names)
    function: Any = get_rllm_adv_estimator("mine")
    assert function is names["mine"]
    assert function([], None) == 2


def test_two_functions_cannot_have_one_name() -> None:
    def other(rewards: Any, algorithm_config: Any, **kwargs: Any) -> Any:
        return rewards, rewards

    register_rllm_adv_estimator("mine")(by_batch_mean)
    with pytest.raises(PluginError) as caught:
        register_rllm_estimator("mine")(other)
    assert f"by {__name__}.by_batch_mean, and by {__name__}.test_two" in caught.value.message


def test_a_callable_object_is_known_by_its_class() -> None:
    class Scaled:
        """Scaled."""

        def __call__(self, inputs: AdvantageInput, params: NoParams) -> Advantages:
            return Advantages(values=inputs.rewards)

    register_rllm_estimator("scaled")(Scaled())
    second = register_rllm_estimator("scaled")(Scaled())
    assert record_of("estimator", "scaled").load() is second


@pytest.mark.parametrize("decorator", EVERY_DECORATOR.values(), ids=EVERY_DECORATOR)
def test_unusable_name_or_argument_is_rejected_at_once(decorator: Any) -> None:
    with expect_error(PluginError, "bad-plugin-spec", f'@{decorator.__name__}("NAME").'):
        decorator(by_batch_mean)
    with expect_error(PluginError, "bad-plugin-spec"):
        decorator("My-Own")(by_batch_mean)
    with expect_error(PluginError, "bad-plugin-spec", "config_keys"):
        decorator("mine", config_keys="rllm.algorithm.kl_beta")(by_batch_mean)


def test_new_estimator_has_options_level_and_scope() -> None:
    def strong(inputs: AdvantageInput, params: Strength) -> Advantages:
        return Advantages(values=inputs.rewards * params.strength)

    register_rllm_estimator("strong", params=Strength, scope="trajectory")(strong)
    assert record_of("estimator", "strong").load() is strong
    record = record_of("estimator", "strong")
    assert (record.params, record.level, record.scope) == (Strength, "trajectory", "trajectory")
    classic: Any = get_rllm_adv_estimator("strong")
    assert lists(classic(REWARDS)[0]) == [[2, 0, 0, 2], [4, 8]]
    assert lists(classic(REWARDS, AlgorithmSection(), strength=3.0)[0]) == [[3, 0, 0, 3], [6, 12]]
    with expect_error(ConfigError, "unknown-option", "'strong'"):
        classic(REWARDS, None, strenght=3)

    register_rllm_estimator("per_step", level="step")(strong)
    with expect_error(PluginError, "bad-estimator-signature", "per_step"):
        get_rllm_adv_estimator("per_step")


def test_losses_groupings_and_rejections_have_their_options() -> None:
    def loss(inputs: Any, params: Any) -> Any:
        return -inputs.advantages * params.strength

    def grouping(episodes: Any, params: Any) -> Any:
        return []

    class Mode(KeepAll):
        """Keeps everything, too."""

    class Mine(Sampler):
        """Always the first task."""

    register_rllm_sampler("mine", params=Strength)(Mine)
    assert record_of("sampler", "mine").load() is Mine
    assert record_of("sampler", "mine").summary == "Always the first task."
    own = {"needs": {"ref_logprobs"}, "config_keys": {"rllm.algorithm.kl_beta"}}
    own |= {"corrects_rollouts": True, "has_ratio": False}
    register_rllm_loss("mine", params=Strength, **own)(loss)
    register_rllm_grouping("mine", params=Strength, summary="Mine.")(grouping)
    register_rllm_rejection("mine", params=Strength)(Mode)
    assert record_of("loss", "mine").load() is loss
    assert record_of("grouping", "mine").load() is grouping
    assert record_of("rejection", "mine").load() is Mode
    records = {kind: record_of(kind, "mine") for kind in ("loss", "grouping", "rejection", "sampler")}
    assert {record.params for record in records.values()} == {Strength}
    assert records["loss"].needs == {"ref_logprobs"}
    assert records["loss"].corrects_rollouts
    assert not records["loss"].has_ratio
    assert records["loss"].config_keys == {"rllm.algorithm.kl_beta"}
    assert [records[kind].summary for kind in ("grouping", "rejection")] == ["Mine.", "Keeps everything, too."]


def test_built_in_estimator_works_on_lists_of_arrays() -> None:
    grpo: Any = get_rllm_adv_estimator("grpo")
    advantages, returns = grpo(REWARDS, AlgorithmSection())
    half = 1 / (1 + 2e-6)
    assert np.allclose(np.concatenate(advantages), [half, -half, -half, half, -1 / (1 + 1e-6), 1 / (1 + 1e-6)])
    assert lists(returns) == lists(advantages)
    assert lists(get_rllm_adv_estimator("rloo")(REWARDS, None)[0])[1] == [-2, 2]


def test_built_in_estimator_reads_config_and_keywords() -> None:
    grpo: Any = get_rllm_adv_estimator("grpo")
    centred = [[0.5, -0.5, -0.5, 0.5], [-1, 1]]
    config = AlgorithmSection(norm_adv_by_std_in_grpo=False)
    assert lists(grpo(REWARDS, config)[0]) == centred
    assert lists(grpo(REWARDS, norm_adv_by_std_in_grpo=False)[0]) == centred
    assert lists(grpo(REWARDS, config, norm_adv_by_std_in_grpo=True)[0]) != centred
