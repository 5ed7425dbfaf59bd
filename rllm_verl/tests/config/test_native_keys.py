"""Keys of verl's own: which there are, of what type, and which have no effect here."""

from __future__ import annotations

from typing import Any

import pytest
from expecting import check_values, expect_error

from rllm.config.keys import idle_reason, known_keys
from rllm.config.layers import layer_from_keys
from rllm.config.paths import ABSENT, leaves, split_key, value_at
from rllm.inspection.explain import Explanation, explain_key
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_verl.keys import SHARED_KEYS, UNUSED_KEYS, UNUSED_KEYS_BY_PROFILE
from rllm_verl.settings import OPTIONAL

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
CPU = "rllm.profile=cpu"


def test_unknown_keys_are_listed_with_the_closest(run: Any) -> None:
    words = (
        f"{ACTOR}.ppo_epoch=2",
        f"{ACTOR}.optim.learning_rate=1e-6",
        "+trainer.n_gpus_per_nodes=2",
        "data.prompts=2",
        layer_from_keys({f"{ROLLOUT}.gpu_memory": 0.5}, "my.yaml"),
    )
    places = (
        f"`{ACTOR}.ppo_epoch` from command line). Write `{ACTOR}.ppo_epochs=2`",
        f"`{ACTOR}.optim.learning_rate` from command line",
        "`trainer.n_gpus_per_nodes` from command line). Write `trainer.n_gpus_per_node=2`",
        "`data.prompts` from command line",
        f"`{ROLLOUT}.gpu_memory` from my.yaml",
    )
    with expect_error(ConfigError, "unknown-key", "5 problems", *places):
        run(*words)
    with expect_error(ConfigError, "unknown-key", "`actor_rollout_ref`"):
        run("actor_rollout_reff.actor.optim.lr=1e-6")


def test_values_of_another_type_than_verls_are_listed(run: Any) -> None:
    wrong = {
        f"{ACTOR}.ppo_epochs=many": "a whole number",
        f"{ACTOR}.fsdp_config.fsdp_size=1.5": "a whole number",
        f"{ACTOR}.optim.lr=fast": "a number",
        f"{ACTOR}.use_dynamic_bsz=1": "true or false",
        f"{ACTOR}.strategy=2": "text",
        f"{ACTOR}.optim.betas=0.9": "a list",
        f"{ACTOR}.checkpoint=all": "a mapping",
        "trainer.nnodes=true": "a whole number",
    }
    with pytest.raises(ConfigError) as raised:
        run(*wrong)
    found = dict(line.split("` is ") for line in raised.value.message.splitlines()[1:])
    assert len(found) == len(wrong)
    for word, expected in wrong.items():
        assert found[f"`{word.partition('=')[0]}"].endswith(f" (from command line): expected {expected}.")


def test_mappings_that_verl_hands_on_take_anything(run: Any) -> None:
    optional = {
        f"{ROLLOUT}.repetition_penalty": 1.1,
        f"{ROLLOUT}.enable_sleep_mode": False,
        "actor_rollout_ref.model.target_parameters": ["experts.weight"],
    }
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
        layer_from_keys(optional, "my.yaml"),
    )
    native = composed.backend_config.native()
    assert native["actor_rollout_ref"]["model"]["override_config"] == {"attention_dropout": 0.1}
    assert native["ray_kwargs"]["ray_init"]["runtime_env"]["env_vars"] == {"NCCL_DEBUG": "INFO"}
    # Keys of verl's classes that its YAML does not have.
    assert {key: value_at(native, split_key(key)) for key in optional} == optional


def test_a_run_without_settings_has_the_required_values(run: Any) -> None:
    composed = run()
    required = {
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.agent.num_workers": 0,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.val_kwargs.do_sample": True,
        f"{ACTOR}.use_rollout_log_probs": True,
        "data.return_multi_modal_inputs": False,
        f"{ROLLOUT}.prompt_length": 2048,
    }
    assert {key: composed.value(key) for key in required} == required
    assert not [key for key in composed.origins if composed.value(key) == "???"]
    native = composed.backend_config.native()
    assert {"actor_rollout_ref", "trainer", "data", "critic", "ray_kwargs"} <= native.keys()
    assert not {"rllm", "training", "deadlines"} & native.keys()


def test_every_idle_key_is_one_of_verl(run: Any) -> None:
    trees = [run(*words).tree for words in ((), ("rllm.profile=megatron",))]
    for name in UNUSED_KEYS:
        path = tuple(name.removesuffix(".*").split("."))
        assert any(value_at(tree, path) is not ABSENT for tree in trees), name
    for profile, keys in UNUSED_KEYS_BY_PROFILE.items():
        tree = run(f"rllm.profile={profile}").tree
        for name in keys:
            assert value_at(tree, tuple(name.removesuffix(".*").split("."))) is not ABSENT or name in OPTIONAL, name


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        (f"{ACTOR}.ppo_mini_batch_size", "training.num_minibatches"),
        (f"{ACTOR}.clip_ratio_c", "rllm.algorithm.loss_fn="),
        ("critic.optim.lr", "critic"),
        ("data.train_files", "data.train_dataset"),
        ("data.gen_batch_size", "rllm.rejection_sample.multiplier"),
        ("algorithm.gamma", "rllm.algorithm.adv_estimator"),
        ("trainer.resume_mode", "--resume"),
        (f"{ACTOR}.shuffle", "rllm.trainer.seed"),
        ("actor_rollout_ref.model.tiled_mlp.enabled", "does not read it"),
        (f"{ROLLOUT}.prompt_length", "data.max_prompt_length"),
    ],
)
def test_idle_keys_name_the_key_to_set(backend: Any, key: str, instead: str) -> None:
    assert instead in str(idle_reason(backend, key))


def test_shared_keys_and_options_are_never_idle(backend: Any) -> None:
    assert all(idle_reason(backend, row.native) is None for row in backend.shared_keys)
    options = {
        "data.train_batch_size": 8,
        "data.train_dataset": {"name": "jsonl", "path": "train.jsonl"},
        "rllm.reward": [{"name": "python", "function": "score.py:score"}],
        "rllm.env.env_args": {"prompt": "text"},
    }
    for path, _ in leaves(options, into_lists=True):
        assert idle_reason(backend, ".".join(path)) is None


@pytest.mark.parametrize("name", ["gpu_memory_utilization", "engine_kwargs.vllm.seed", "repetition_penalty"])
def test_vllm_keys_are_unused_without_vllm_rollouts(backend: Any, name: str) -> None:
    assert idle_reason(backend, f"{ROLLOUT}.{name}", "cpu_vllm") is None
    check_values(str(idle_reason(backend, f"{ROLLOUT}.{name}", "cpu")), "vLLM", "profile cpu")


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["critic.optim.lr=1e-4"], ["`critic.optim.lr`", "(from command line)", "backend verl", "no critic"]),
        ([f"{ROLLOUT}.enforce_eager=true"], [f"`{ROLLOUT}.enforce_eager`", "backend verl", "vLLM", "profile cpu"]),
        (["rllm.algorithm.loss_fn=reinforce", f"{ACTOR}.clip_ratio=0.1"], ["`rllm.algorithm.eps_clip`"]),
    ],
)
def test_a_users_value_without_effect_stops_the_run(plan: Any, words: list[str], values: list[str]) -> None:
    with expect_error(ConfigError, "unused-key", *values):
        plan(CPU, *words)


def test_values_of_rllm_table_are_only_warnings(plan: Any, backend: Any) -> None:
    table = {
        f"{ROLLOUT}.mode": "async",
        f"{ROLLOUT}.agent.num_workers": 0,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.val_kwargs.do_sample": True,
        f"{ACTOR}.use_rollout_log_probs": True,
        "data.gen_batch_size": "${mul:${data.train_batch_size},${rllm.rejection_sample.multiplier}}",
        "data.return_multi_modal_inputs": False,
        "rllm.backend": "verl",
        "rllm.algorithm.rollout_correction.bypass_mode": False,
        "trainer.resume_mode": "disable",
        f"{ACTOR}.use_remove_padding": True,
        f"{ROLLOUT}.gpu_memory_utilization": 0.5,
    }
    before, given = plan(CPU), plan(CPU, layer_from_keys(table, "my.yaml"))
    assert given.composed.tree == before.composed.tree
    new = [line for line in given.warnings if line not in before.warnings]
    assert {line.partition("` is ")[0] for line in new} == {
        f"`{key}" for key in table if idle_reason(backend, key, "cpu")
    }
    for line in new:
        check_values(line, "(from my.yaml)", "default")


def test_unused_keys_may_be_warnings(plan: Any) -> None:
    # A shared key in a section of idle keys is none.
    planned = plan(CPU, "rllm.unused_keys=warn", "critic.optim.lr=0.1", "algorithm.adv_estimator=rloo")
    (line,) = [each for each in planned.warnings if "backend verl does not use" in each]
    check_values(line, "`critic.optim.lr` is 0.1 (from command line)", "backend verl")
    assert planned.estimators.default.plugin.name == "rloo"


def test_shared_keys_name_keys_of_the_core() -> None:
    core = {".".join(path) for path in known_keys(RunConfig)}
    assert {row.rllm for row in SHARED_KEYS} <= core


def test_optional_keys_are_fields_of_verls_classes() -> None:
    from dataclasses import fields

    from verl.workers.config import FSDPEngineConfig, HFModelConfig, RolloutConfig

    sections = {"fsdp_config": FSDPEngineConfig, "model": HFModelConfig, "rollout": RolloutConfig}
    for section, name in (key.split(".")[-2:] for key in OPTIONAL):
        assert name in {field.name for field in fields(sections[section])}


@pytest.mark.parametrize(
    ("key", "facts"),
    [
        (f"{ACTOR}.optim.lr", {"value": "0.001 (from recipe sum verl/tiny)", "read by": "backend verl"}),
        ("trainer.n_gpus_per_node", {"value": "1 (from backend verl, profile cpu)", "read by": "backend verl"}),
        ("critic.optim.lr", {"value": "1e-05 (from backend verl)", "read by": "no plugin"}),
        (f"{ACTOR}.grad_clip", {"refused": f"Set {ACTOR}.optim.clip_grad."}),
    ],
)
def test_key_is_explained(plan: Any, registry: Registry, key: str, facts: dict[str, str]) -> None:
    found = explain_key(key, plan(CPU), registry)
    assert isinstance(found, Explanation)
    assert facts.items() <= found.facts.items()
