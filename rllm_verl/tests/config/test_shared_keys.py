"""The table of shared keys, row by row and level by level, in what the installed verl really ships."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

from rllm.config.compose import Composed
from rllm.config.layers import Layer, layer_from_dotted
from rllm.config.paths import value_at
from rllm_verl.installed import config_search_path
from rllm_verl.shared_keys import SHARED_KEYS

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
ALGORITHM = "rllm.algorithm"


class Row(NamedTuple):
    """A shared key with two values a user may give; `native` ones are written as verl writes them."""

    native: str
    rllm: str
    value: Any
    other: Any
    default: Any
    """Default value of the core's key."""
    spelled: dict[Any, Any] = {}  # noqa: RUF012  (core's spelling -> verl's, where they differ)
    deprecated: bool = True

    def in_verl(self, value: Any) -> Any:
        return self.spelled.get(value, value) if not isinstance(value, list) else value


TABLE = (
    Row("algorithm.adv_estimator", f"{ALGORITHM}.adv_estimator", "rloo", "reinforce", "grpo"),
    Row("algorithm.norm_adv_by_std_in_grpo", f"{ALGORITHM}.norm_adv_by_std_in_grpo", False, True, True),
    Row("algorithm.rollout_correction.bypass_mode", f"{ALGORITHM}.rollout_correction.bypass_mode", True, False, False),
    Row(
        "algorithm.rollout_correction.rollout_is",
        f"{ALGORITHM}.rollout_correction.tis_mode",
        "token",
        "sequence",
        None,
    ),
    Row("algorithm.rollout_correction.rollout_is_threshold", f"{ALGORITHM}.rollout_correction.tis_cap", 3.0, 5.0, 2.0),
    Row(
        "algorithm.rollout_correction.rollout_is_batch_normalize",
        f"{ALGORITHM}.rollout_correction.tis_batch_normalize",
        True,
        False,
        False,
    ),
    Row(f"{ACTOR}.kl_loss_coef", f"{ALGORITHM}.kl_beta", 0.01, 0.02, 0.0),
    Row(f"{ACTOR}.policy_loss.loss_mode", f"{ALGORITHM}.loss_fn", "gspo", "ppo", "ppo", {"ppo": "vanilla"}),
    Row(
        f"{ACTOR}.loss_agg_mode",
        f"{ALGORITHM}.loss_agg_mode",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "token-mean",
    ),
    Row(f"{ACTOR}.clip_ratio_high", f"{ALGORITHM}.eps_clip_high", 0.28, 0.3, None),
    Row(f"{ROLLOUT}.n", "rllm.rollout.n", 4, 16, 8),
    Row(f"{ROLLOUT}.val_kwargs.n", "rllm.rollout.n_val", 4, 16, 1),
    Row("trainer.total_epochs", "rllm.trainer.total_epochs", 2, 3, 10),
    Row("trainer.total_training_steps", "rllm.trainer.total_batches", 5, 7, -1, {-1: None}),
    Row("trainer.logger", "rllm.trainer.logger", ["tensorboard"], ["console", "tensorboard"], ["console"]),
    Row("trainer.project_name", "rllm.trainer.project_name", "mine", "yours", "rllm-training"),
    Row("trainer.experiment_name", "rllm.trainer.experiment_name", "one", "two", "default"),
    Row("trainer.test_freq", "rllm.trainer.test_freq", 2, 3, 5),
    Row("trainer.save_freq", "rllm.trainer.save_freq", 2, 3, 20),
    Row("trainer.val_before_train", "rllm.trainer.val_before_train", False, True, True),
    Row("trainer.val_only", "rllm.trainer.val_only", True, False, False),
    Row(f"{ACTOR}.clip_ratio", f"{ALGORITHM}.eps_clip", 0.1, 0.3, 0.2),
    Row(f"{ACTOR}.clip_ratio_low", f"{ALGORITHM}.eps_clip", 0.1, 0.3, 0.2),
    Row(f"{ACTOR}.entropy_coeff", f"{ALGORITHM}.entropy.coeff", 0.01, 0.02, 0.0),
    Row(
        f"{ACTOR}.kl_loss_type",
        f"{ALGORITHM}.kl_estimator",
        "k1",
        "k2",
        "k3",
        {"k1": "kl", "k2": "mse", "k3": "low_var_kl"},
    ),
    Row(f"{ACTOR}.optim.lr_scheduler_type", f"{ALGORITHM}.lr_schedule", "cosine", "linear", "constant", {}, False),
    Row(f"{ACTOR}.optim.lr_warmup_steps_ratio", f"{ALGORITHM}.warmup_steps_ratio", 0.1, 0.2, 0.0, {}, False),
    Row(f"{ROLLOUT}.temperature", "sampling.train.temperature", 0.7, 0.9, 1.0),
    Row(f"{ROLLOUT}.top_p", "sampling.train.top_p", 0.7, 0.9, 1.0),
    Row(f"{ROLLOUT}.top_k", "sampling.train.top_k", 7, 9, -1),
    Row(f"{ROLLOUT}.val_kwargs.temperature", "sampling.val.temperature", 0.7, 0.9, 1.0),
    Row(f"{ROLLOUT}.val_kwargs.top_p", "sampling.val.top_p", 0.7, 0.9, 1.0),
    Row(f"{ROLLOUT}.val_kwargs.top_k", "sampling.val.top_k", 7, 9, -1),
)
CLIP_RATIO, CLIP_RATIO_LOW = f"{ACTOR}.clip_ratio", f"{ACTOR}.clip_ratio_low"
FALLS_BACK = f"{ACTOR}.clip_ratio_high"
"""Its core key is null by default and then means another one."""


DIFFER = {
    "algorithm.adv_estimator": "gae",
    f"{ACTOR}.kl_loss_coef": 0.001,
    "trainer.total_epochs": 30,
    "trainer.project_name": "verl_examples",
    f"{ROLLOUT}.n": 1,
    f"{ROLLOUT}.val_kwargs.temperature": 0,
}
"""verl's defaults that differ from the core's defaults."""


def packaged_values_of_verl() -> dict[str, Any]:
    """verl's own ``ppo_trainer.yaml``, as its own trainer would compose it."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    (place,) = config_search_path()
    with initialize_config_dir(place.removeprefix("file://"), version_base="1.3"):
        tree = OmegaConf.to_container(compose("ppo_trainer"))
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def word(key: str, value: Any) -> str:
    return f"{key}={json.dumps(value) if isinstance(value, list | bool) or value is None else value}"


@pytest.fixture(scope="module")
def compose_rows(run: Any) -> Callable[..., Composed]:
    """Sets all rows at once: `given` says what for each. Of two rows with one key of the core one is left out.

    What is composed is kept under `level`, since every row asks for it.
    """
    known: dict[tuple[str, str], Composed] = {}

    def composed(level: str, row: Row, given: Callable[[Row], Iterable[str | Layer]]) -> Composed:
        left_out = CLIP_RATIO if row.native == CLIP_RATIO_LOW else CLIP_RATIO_LOW
        if (level, left_out) not in known:
            words = [each for other in TABLE if other.native != left_out for each in given(other)]
            known[level, left_out] = run(*words)
        return known[level, left_out]

    return composed


def said_of(row: Row, composed: Composed) -> list[str]:
    return [line for line in composed.warnings if f"`{row.native}`" in line]


def both(composed: Composed, row: Row) -> tuple[Any, Any]:
    return composed.value(row.rllm), composed.value(row.native)


def agreed(row: Row, value: Any) -> tuple[Any, Any]:
    return value, row.in_verl(value)


def test_the_table_here_is_the_table_of_the_backend() -> None:
    assert [(row.native, row.rllm) for row in SHARED_KEYS] == [(row.native, row.rllm) for row in TABLE]


def test_level_1_the_core_on_the_command_line_wins_over_verl_there_with_a_warning(compose_rows: Any) -> None:
    for row in TABLE:
        composed = compose_rows(
            "conflict",
            row,
            lambda each: (word(each.native, each.in_verl(each.other)), word(each.rllm, each.value)),
        )
        assert both(composed, row) == agreed(row, row.value)
        (warning,) = said_of(row, composed)
        assert "the latter counts" in warning
        assert f"Set only `{row.rllm}`" in warning


def test_level_1_the_core_on_the_command_line_is_mirrored_without_a_word(compose_rows: Any) -> None:
    for row in TABLE:
        composed = compose_rows("core", row, lambda each: [word(each.rllm, each.value)])
        assert both(composed, row) == agreed(row, row.value)
        assert composed.warnings == ()


def test_level_2_verl_on_the_command_line_counts_and_is_deprecated(compose_rows: Any) -> None:
    for row in TABLE:
        composed = compose_rows("verl", row, lambda each: [word(each.native, each.in_verl(each.value))])
        assert both(composed, row) == agreed(row, row.value)
        said = [f"which is deprecated: set `{row.rllm}` instead."] if row.deprecated else []
        assert [line.rpartition(", ")[2] for line in said_of(row, composed)] == said


def test_level_2_verl_on_the_command_line_wins_over_the_core_in_a_file(compose_rows: Any) -> None:
    for row in TABLE:
        composed = compose_rows(
            "verl over a file",
            row,
            lambda each: (
                layer_from_dotted({each.rllm: each.other}, "my.yaml"),
                word(each.native, each.in_verl(each.value)),
            ),
        )
        assert both(composed, row) == agreed(row, row.value)
        (warning,) = said_of(row, composed)
        assert "the latter counts" in warning
        assert "my.yaml" in warning


def test_files_agree_as_the_command_line_does(compose_rows: Any) -> None:
    for row in TABLE:
        composed = compose_rows(
            "files",
            row,
            lambda each: (
                layer_from_dotted({each.native: each.in_verl(each.other)}, "verl.yaml"),
                layer_from_dotted({each.rllm: each.value}, "my.yaml"),
            ),
        )
        assert both(composed, row) == agreed(row, row.value)
        (warning,) = said_of(row, composed)
        assert "the latter counts" in warning


def test_levels_3_and_4_packaged_values_agree_without_a_word(compose_rows: Any) -> None:
    for row in TABLE:
        composed = compose_rows("nothing", row, lambda each: [])
        assert composed.value(row.rllm) == row.default
        assert composed.value(row.native) == (0.2 if row.native == FALLS_BACK else row.in_verl(row.default))
        assert composed.warnings == ()


def test_level_3_values_of_the_core_replace_those_that_verl_ships(run: Any) -> None:
    ships = packaged_values_of_verl()
    composed = run()
    for row in TABLE:
        if row.native in DIFFER:
            assert value_at(ships, tuple(row.native.split("."))) == DIFFER[row.native]
            assert both(composed, row) == agreed(row, row.default)


def test_level_4_a_null_of_the_core_takes_what_verl_ships(run: Any) -> None:
    composed = run()
    assert composed.value(f"{ALGORITHM}.loss_fn") == "ppo"
    assert composed.origins[f"{ALGORITHM}.loss_fn"] == f"backend verl, by {ACTOR}.policy_loss.loss_mode"
    assert composed.value(f"{ALGORITHM}.lr_schedule") == "constant"


def test_bypass_mode_cannot_be_changed(run: Any) -> None:
    composed = run()
    assert composed.value(f"{ALGORITHM}.rollout_correction.bypass_mode") is False
    assert composed.origins[f"{ALGORITHM}.rollout_correction.bypass_mode"] == "backend verl"


def test_a_whole_plugin_choice_is_its_name_to_verl(run: Any) -> None:
    composed = run("rllm.algorithm.adv_estimator={name: rllm-core/grpo, norm_adv_by_std_in_grpo: false}")
    assert composed.value("algorithm.adv_estimator") == "grpo"


@pytest.mark.parametrize(
    ("native", "ours"),
    [("vanilla", "ppo"), ("ppo", "ppo"), ("gspo", "gspo"), ("gpg", "reinforce"), ("geo_mean", "gmpo")],
)
def test_verls_loss_names_are_ours(run: Any, native: str, ours: str) -> None:
    composed = run(f"{ACTOR}.policy_loss.loss_mode={native}")
    assert composed.value(f"{ALGORITHM}.loss_fn") == ours


# The length of training.


@pytest.mark.long
def test_null_steps_of_verl_are_minus_one_of_the_core(run: Any) -> None:
    composed = run("trainer.total_training_steps=null")
    assert composed.value("rllm.trainer.total_batches") == -1
    composed = run("rllm.trainer.total_batches=-1", "trainer.total_training_steps=5")
    assert composed.value("trainer.total_training_steps") is None


def test_steps_of_verl_end_the_run_as_those_of_the_core_do(run: Any) -> None:
    composed = run(layer_from_dotted({"rllm.trainer.total_epochs": 3}, "my.yaml"), "trainer.total_training_steps=5")
    assert composed.value("rllm.trainer.total_batches") == 5
    assert composed.value("trainer.total_epochs") == 10


# Derived keys.


@pytest.mark.parametrize(
    ("words", "used"),
    [
        ((), False),
        ((f"{ALGORITHM}.kl_beta=0.01",), True),
        ((f"{ACTOR}.kl_loss_coef=0.01",), True),
        ((f"{ALGORITHM}.kl_beta=0.0", f"{ACTOR}.kl_loss_coef=0.01"), False),
        ((f"{ACTOR}.use_kl_loss=true", f"{ALGORITHM}.kl_beta=0.01"), True),
        ((f"{ACTOR}.use_kl_loss=false", f"{ALGORITHM}.kl_beta=0.01"), False),
    ],
)
def test_use_kl_loss_follows_from_kl_beta_unless_it_is_set(run: Any, words: tuple[str, ...], used: bool) -> None:
    assert run(*words).value(f"{ACTOR}.use_kl_loss") is used


def test_the_generated_batch_follows_from_the_batch_and_the_multiplier(run: Any) -> None:
    assert run("data.train_batch_size=8").value("data.gen_batch_size") == 8
    enlarged = run("data.train_batch_size=8", "rllm.rejection_sample={enable: true, multiplier: 2}")
    assert enlarged.value("data.gen_batch_size") == 16


def test_tasks_per_minibatch_follow_from_the_number_of_minibatches(run: Any) -> None:
    composed = run("data.train_batch_size=10", "training.num_minibatches=4")
    assert composed.value(f"{ACTOR}.ppo_mini_batch_size") == 3
    assert run().value(f"{ACTOR}.ppo_mini_batch_size") == 64
