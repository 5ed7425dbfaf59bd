"""Keys of verl's own: which there are, of what type, and which have no effect here."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.config.keys import known_keys
from rllm.config.layers import layer_from_dotted
from rllm.config.paths import ABSENT, leaves, split_key, value_at
from rllm.config.unused import idle_reason
from rllm_core.errors import ConfigError
from rllm_core.schema.run_config import RunConfig
from rllm_verl.settings import OPTIONAL
from rllm_verl.shared_keys import SHARED_KEYS
from rllm_verl.unused_keys import IDLE_KEYS, IDLE_KEYS_OF_PROFILES

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (f"{ACTOR}.ppo_epoch=2", f"`{ACTOR}.ppo_epochs=2`"),
        (f"{ACTOR}.optim.learning_rate=1e-6", f"`{ACTOR}.optim.learning_rate`"),
        ("+trainer.n_gpus_per_nodes=2", "`trainer.n_gpus_per_node=2`"),
        ("data.prompts=2", "`prompts`"),
        ("actor_rollout_reff.actor.optim.lr=1e-6", "`actor_rollout_ref`"),
    ],
)
def test_a_key_that_verl_does_not_have_is_an_error_with_its_place_and_the_closest(
    run: Any, word: str, value: str
) -> None:
    with expect_error(ConfigError, "unknown-key", value, "from command line"):
        run(word)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.train_dataset", {"name": "jsonl", "path": "train.jsonl"}),
        ("rllm.reward", [{"name": "python", "function": "score.py:score"}]),
        ("rllm.env.env_args", {"prompt": "text"}),
    ],
)
def test_options_of_the_core_s_choices_are_no_keys_of_verl(registry: Any, key: str, value: Any) -> None:
    backend = registry.get("backend", "verl").plugin
    for path, _ in leaves({key: value}, into_lists=True):
        assert idle_reason(backend, ".".join(path)) is None


def test_an_unknown_key_of_a_file_names_the_file(run: Any) -> None:
    with pytest.raises(ConfigError, match=r"from my\.yaml"):
        run(layer_from_dotted({f"{ROLLOUT}.gpu_memory": 0.5}, "my.yaml"))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (f"{ACTOR}.ppo_epochs=many", "a whole number"),
        (f"{ACTOR}.ppo_epochs=1.5", "a whole number"),
        (f"{ACTOR}.optim.lr=fast", "a number"),
        (f"{ACTOR}.use_dynamic_bsz=1", "true or false"),
        (f"{ACTOR}.strategy=2", "text"),
        (f"{ACTOR}.optim.betas=0.9", "a list"),
        (f"{ACTOR}.optim=AdamW", "a mapping"),
        ("trainer.nnodes=true", "a whole number"),
    ],
)
def test_a_value_of_another_type_than_verls_is_an_error(run: Any, word: str, expected: str) -> None:
    key = word.partition("=")[0]
    with pytest.raises(ConfigError) as raised:
        run(word)
    assert raised.value.message.startswith(f"`{key}` is ")
    assert raised.value.message.endswith(f"(from command line): expected {expected}.")


def test_mappings_that_verl_hands_on_take_anything(run: Any) -> None:
    composed = run(
        "actor_rollout_ref.model.override_config.attention_dropout=0.1",
        f"+{ROLLOUT}.engine_kwargs.vllm.compilation_config={{mode: 0}}",
        f"{ROLLOUT}.engine_kwargs.another.option=1",
        "ray_kwargs.ray_init.address=auto",
        "ray_kwargs.ray_init.runtime_env.env_vars.NCCL_DEBUG=INFO",
        "actor_rollout_ref.model.lora.use_dora=true",
        f"{ACTOR}.fsdp_config.mixed_precision={{param_dtype: bf16}}",
        "actor_rollout_ref.model.target_modules=[q_proj, v_proj]",
        f"{ACTOR}.optim.lr=1",
    )
    native = composed.backend_config.native()
    assert native["actor_rollout_ref"]["model"]["override_config"] == {"attention_dropout": 0.1}
    assert native["ray_kwargs"]["ray_init"]["runtime_env"]["env_vars"] == {"NCCL_DEBUG": "INFO"}


def test_nothing_that_must_be_given_is_left(run: Any) -> None:
    composed = run()
    assert not [key for key in composed.origins if composed.value(key) == "???"]
    assert composed.value(f"{ROLLOUT}.prompt_length") == composed.value("data.max_prompt_length") == 2048
    assert composed.value("data.train_batch_size") == 64


def test_required_overrides_of_verls_own_values(run: Any) -> None:
    composed = run()
    assert composed.value(f"{ROLLOUT}.mode") == "async"
    assert composed.value(f"{ROLLOUT}.agent.num_workers") == 0
    assert composed.value(f"{ROLLOUT}.calculate_log_probs") is True
    assert composed.value(f"{ROLLOUT}.val_kwargs.do_sample") is True
    assert composed.value(f"{ACTOR}.use_rollout_log_probs") is True
    assert composed.value("data.return_multi_modal_inputs") is False
    assert composed.value("rllm.backend") == "verl"


def test_verl_receives_only_its_own_sections(run: Any) -> None:
    native = run().backend_config.native()
    assert {"actor_rollout_ref", "trainer", "data", "critic", "ray_kwargs"} <= native.keys()
    assert not {"rllm", "training", "deadlines"} & native.keys()


def test_every_idle_key_is_one_of_verl(run: Any) -> None:
    trees = [run(f"rllm.profile={profile}").tree for profile in ("null", "megatron")]
    for name in IDLE_KEYS:
        path = tuple(name.removesuffix(".*").split("."))
        assert any(value_at(tree, path) is not ABSENT for tree in trees), name


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        (f"{ACTOR}.ppo_mini_batch_size=32", "training.num_minibatches"),
        (f"{ACTOR}.clip_ratio_c=4.0", "rllm.algorithm.loss_fn="),
        ("critic.optim.lr=1e-4", "critic"),
        ("data.train_files=x.parquet", "data.train_dataset"),
        ("data.gen_batch_size=8", "rllm.rejection_sample.multiplier"),
        ("algorithm.gamma=0.9", "rllm.algorithm.adv_estimator"),
        ("trainer.resume_mode=auto", "--resume"),
        ("data.gen_batch_size=128", "rllm.rejection_sample.multiplier"),
        (f"{ACTOR}.shuffle=false", "rllm.trainer.seed"),
        ("actor_rollout_ref.model.tiled_mlp.enabled=true", ""),
        (f"{ROLLOUT}.prompt_length=7", "data.max_prompt_length"),
    ],
)
def test_a_users_value_that_nothing_acts_on_stops_the_run(plan: Any, word: str, instead: str) -> None:
    key = word.partition("=")[0]
    with expect_error(ConfigError, "unused-key", f"`{key}`", "(from command line)", "backend verl") as caught:
        plan("rllm.profile=cpu", word)
    assert caught.value.hint
    assert instead in caught.value.hint


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{ROLLOUT}.mode", "async"),
        (f"{ROLLOUT}.agent.num_workers", 0),
        (f"{ROLLOUT}.calculate_log_probs", True),
        (f"{ROLLOUT}.val_kwargs.do_sample", True),
        (f"{ACTOR}.use_rollout_log_probs", True),
        ("data.gen_batch_size", 64),
        ("data.gen_batch_size", "${mul:${data.train_batch_size},${rllm.rejection_sample.multiplier}}"),
        ("data.return_multi_modal_inputs", False),
        ("rllm.backend", "verl"),
        ("rllm.algorithm.rollout_correction.bypass_mode", False),
        ("trainer.resume_mode", "disable"),
        (f"{ACTOR}.use_remove_padding", True),
    ],
)
def test_the_values_of_rllms_own_table_are_warnings_at_most(plan: Any, key: str, value: Any) -> None:
    words = ("rllm.profile=cpu", "data.train_batch_size=64")
    before, given = plan(*words), plan(*words, layer_from_dotted({key: value}, "my.yaml"))
    assert given.composed.tree == before.composed.tree
    new = [line for line in given.warnings if line not in before.warnings]
    if idle_reason(given.backend.plugin, key):
        (line,) = new
        assert line.startswith(f"`{key}` is ")
        check_values(line, "(from my.yaml)", "default")
    else:
        assert new == []


@pytest.mark.parametrize(
    "word",
    [f"{ROLLOUT}.gpu_memory_utilization=0.9", f"{ROLLOUT}.engine_kwargs.vllm.seed=1", f"{ROLLOUT}.enforce_eager=true"],
)
def test_keys_of_vllm_are_refused_where_rollouts_are_not_vllms(plan: Any, word: str) -> None:
    key = word.partition("=")[0]
    with expect_error(ConfigError, "unused-key", f"`{key}`", "backend verl", "vLLM", "profile cpu"):
        plan("rllm.profile=cpu", word)
    plan("actor_rollout_ref.model.use_fused_kernels=false", word)


def test_a_key_of_vllm_at_its_default_is_a_warning(plan: Any) -> None:
    lines = plan("rllm.profile=cpu", f"{ROLLOUT}.gpu_memory_utilization=0.5").warnings
    assert any("gpu_memory_utilization` is 0.5 (from command line)" in line and "default" in line for line in lines)


def test_every_idle_key_of_a_profile_is_one_of_verl(run: Any) -> None:
    for profile, keys in IDLE_KEYS_OF_PROFILES.items():
        tree = run(f"rllm.profile={profile}").tree
        for name in keys:
            known = value_at(tree, tuple(name.removesuffix(".*").split("."))) is not ABSENT
            assert known or name in OPTIONAL, name


def test_a_key_of_vllm_that_the_yaml_leaves_out_is_refused_on_a_cpu(plan: Any) -> None:
    with expect_error(ConfigError, "unused-key", f"`{ROLLOUT}.repetition_penalty`", "profile cpu"):
        plan("rllm.profile=cpu", f"{ROLLOUT}.repetition_penalty=1.1")


def test_unused_keys_may_be_warnings(plan: Any) -> None:
    (line,) = plan("rllm.profile=cpu", "rllm.unused_keys=warn", "critic.optim.lr=0.1").warnings
    check_values(line, "`critic.optim.lr` is 0.1 (from command line)", "backend verl")


def test_shared_keys_in_idle_sections_are_no_error(plan: Any) -> None:
    planned = plan("rllm.profile=cpu", "algorithm.adv_estimator=rloo", "data.train_batch_size=4")
    assert planned.estimators.default.plugin.name == "rloo"


def test_an_option_that_the_chosen_plugin_lacks_is_refused_as_on_other_backends(plan: Any) -> None:
    with expect_error(ConfigError, "unused-key", "`rllm.algorithm.eps_clip`"):
        plan("rllm.profile=cpu", "rllm.algorithm.loss_fn=reinforce", "rllm.algorithm.eps_clip=0.1")


def test_shared_keys_name_keys_of_the_core(run: Any) -> None:
    core = {".".join(path) for path in known_keys(RunConfig)}
    assert {row.rllm for row in SHARED_KEYS} <= core


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{ROLLOUT}.repetition_penalty", 1.1),
        (f"{ROLLOUT}.enable_sleep_mode", False),
        ("actor_rollout_ref.model.target_parameters", ["experts.weight"]),
    ],
)
def test_a_key_of_verls_classes_that_its_yaml_leaves_out_reaches_verl(run: Any, key: str, value: Any) -> None:
    native = run(layer_from_dotted({key: value}, "my.yaml")).backend_config.native()
    assert value_at(native, split_key(key)) == value


def test_such_keys_are_fields_of_verls_classes() -> None:
    from dataclasses import fields

    from verl.workers.config import FSDPEngineConfig, HFModelConfig, RolloutConfig

    sections = {"fsdp_config": FSDPEngineConfig, "model": HFModelConfig, "rollout": RolloutConfig}
    for section, name in (key.split(".")[-2:] for key in OPTIONAL):
        assert name in {field.name for field in fields(sections[section])}
