"""Configurations that cannot be used: each is an error with a code, the key, its value and its origin."""

from __future__ import annotations

import pytest
from expecting import expect_error

from rllm.config.compose import compose
from rllm.config.layers import layers_from_overrides
from rllm.planning.planner import make_plan
from rllm_core.errors import ConfigError
from rllm_core.plugins.registry import Registry

CORRECTION = "rllm.algorithm.rollout_correction"
ROLES = "rllm.algorithm"

UNKNOWN_KEYS: list[tuple[str, list[str]]] = [
    (
        "rllm.trainer.lr=1",
        ["`lr`", "`rllm.trainer.lr`", "from command line", "`model.lora_rank=1` or `training.learning"],
    ),
    ("rllm.trainer.rate=1", ["`training.learning_rate=1` or `critic.learning_rate=1`"]),
    ("rllm.trainer.total_epoch=1", ["`rllm.trainer.total_epoch`", "`rllm.trainer.total_epochs=1`"]),
    ("rllm.rollout.temperature=0", ["`sampling.train.temperature=0`", "`sampling.val.temperature=0`"]),
    ("rllm.trainer.train_batch_size=1", ["`data.train_batch_size=1`"]),
    ("rllm.rollout.zz={a:1}", ["`zz`", "`rllm config explain rllm.rollout`"]),
    ("modle.name=x", ["`modle`", "`model`"]),
    ("algorithm.eps_clip=0.1", ["`algorithm`", "backend local", "`rllm.algorithm.eps_clip=0.1`"]),
    ("learning_rate=1", ["`training.learning_rate=1` or `critic.learning_rate=1`"]),
    ("training.learning_rat=1", ["`training.learning_rate=1`"]),
    ("rllm.algorithm.clip_ratio_c=3", ["rllm.algorithm.loss_fn=", "'{name: ppo, clip_ratio_c: 3}'"]),
    ("rllm.algorithm.dialect=verl", ["rllm.algorithm.adv_estimator=", "'{name: grpo, dialect: \"verl\"}'"]),
]
WRONG_VALUES: list[tuple[str, str, str, str]] = [
    ("rllm.rollout.n=many", "rllm.rollout.n", '"many"', "whole number"),
    ("rllm.rollout.n=true", "rllm.rollout.n", "true", "number"),
    ("rllm.rollout.n=0", "rllm.rollout.n", "0", "more than 0"),
    ("rllm.trainer.total_batches=0", "rllm.trainer.total_batches", "0", "-1"),
    ("rllm.trainer.test_freq=-2", "rllm.trainer.test_freq", "-2", "-1"),
    ("sampling.val.top_p=1.5", "sampling.val.top_p", "1.5", "1.0"),
    ("rllm.trainer.val_only=1", "rllm.trainer.val_only", "1", "true or false"),
    ("training.learning_rate=1e-4x", "training.learning_rate", '"1e-4x"', "number"),
    ("training.learning_rate.x=1", "training.learning_rate", '{"x": 1}', "number"),
    ("rllm.env.env_args=x", "rllm.env.env_args", '"x"', "mapping"),
    ("sampling.train=null", "sampling.train", "null", "mapping"),
    ("rllm.rollout=[1]", "rllm.rollout", "[1]", "mapping"),
    ("rllm=5", "rllm", "5", "mapping"),
    ("model=5", "model", "5", "mapping"),
    ("rllm.backend=3", "rllm.backend", "3", "text"),
    ("rllm.env.name=[x]", "rllm.env.name", '["x"]', "text"),
    ("rllm.trainer.logger=x", "rllm.trainer.logger", '"x"', "list"),
    ("rllm.trainer.logger=[x,3]", "rllm.trainer.logger.1", "3", "text or a mapping"),
    ("rllm.algorithm.estimator_map={a:3}", "rllm.algorithm.estimator_map.a", "3", "text or a mapping"),
    ("rllm.algorithm.on_missing_reward=x", "rllm.algorithm.on_missing_reward", '"x"', "'error', 'drop' or 'zero'"),
    ("rllm.trainer.project_name=a/b", "rllm.trainer.project_name", '"a/b"', "^[\\w-][\\w.-]*$"),
    ("rllm.trainer.experiment_name=.x", "rllm.trainer.experiment_name", '".x"', "^[\\w-][\\w.-]*$"),
]
UNUSED: list[tuple[str, list[str]]] = [
    ("rllm.algorithm.loss_fn=reinforce rllm.algorithm.eps_clip=0.3", ["This run uses loss reinforce."]),
    ("rllm.algorithm.loss_fn={name:ppo,eps_clip:0.1} rllm.algorithm.eps_clip=0.3", ["loss ppo has its own value"]),
    ("rllm.agent.max_steps=3", ["`rllm.agent.max_steps` is 3 (from command line)"]),
    ("rllm.agent.engine_args.size=1", ["No installed plugin reads it. Remove it."]),
    ("rllm.sdk.proxy.port=4001", ["rllm.workflow.name=agent"]),
    ("rllm.rejection_sample.mode=episode", ["Set rllm.rejection_sample.enable=true"]),
    ("rllm.stepwise_advantage.mode=per_step", ["rllm.stepwise_advantage.mode"]),
    ("rllm.trainer.total_batches=3 rllm.trainer.total_epochs=2", ["total_epochs` is 2", "total_batches is 3"]),
    ("rllm.env.name=custom rllm.algorithm.entropy.final_coeff=0.1", ["final_coeff` is 0.1", "decay_steps is 0"]),
    ("rllm.env.name=custom rllm.algorithm.entropy.decay_steps=9", ["decay_steps` is 9", "coeff and final_coeff"]),
    ("rllm.algorithm.kl_estimator=k2", ['kl_estimator` is "k2"', "rllm.algorithm.kl_beta is 0"]),
    (f"{CORRECTION}.tis_mode=token {CORRECTION}.bypass_mode=true", ['tis_mode` is "token"', "bypass_mode is true"]),
    (f"{CORRECTION}.tis_floor=0.5", [f"`{CORRECTION}.tis_floor` is 0.5", f"{CORRECTION}.tis_mode is null"]),
    ("critic.clip=0.2", ["`critic.clip` is 0.2", "values"]),
    ("rllm.algorithm.on_precomputed_mismatch=zero", ["rllm.algorithm.use_precomputed_advantage is false"]),
    ("rllm.env.name=custom rllm.env.env_args.prompt=guess", ["{'prompt': 'guess'}", "rllm.env.name is custom"]),
    ("rllm.algorithm.use_rllm=false", ["`rllm.algorithm.use_rllm` is false"]),
]
"""Values without an effect."""
OTHERS: list[tuple[str, str, list[str]]] = [
    ("trainer.nnodes=1", "section-of-other-backend", ["`trainer`", "backend verl", "backend local"]),
    # What cannot be resolved.
    ("rllm.trainer.seed=${nowhere}", "bad-interpolation", ["`rllm.trainer.seed`", "`${nowhere}`", "command line"]),
    ("rllm.rollout.n=${rllm.rollout.n}", "bad-interpolation", ["`rllm.rollout.n`"]),
    ("rllm.rollout.n=${.n_val} rllm.rollout.n_val=${.n}", "bad-interpolation", ["`rllm.rollout.n`"]),
    ("rllm.trainer.logger=['${']", "bad-interpolation", ["`rllm.trainer.logger[0]`", "`${`"]),
    ("rllm.trainer.seed=${oc.env:NO_VARIABLE}", "bad-interpolation", ["`rllm.trainer.seed`", "'NO_VARIABLE'"]),
    ("rllm.trainer.seed=${no_resolver:1}", "bad-interpolation", ["`rllm.trainer.seed`", "no_resolver"]),
    ("rllm.backend=${nowhere}", "bad-interpolation", ["`rllm.backend`", "`${nowhere}`"]),
    ("rllm.env.env_args={x:'???'}", "missing-key", ["`rllm.env.env_args.x`", "`???`"]),
    ("rllm.env.env_args={x:['???']}", "missing-key", ["`rllm.env.env_args.x.0`"]),
    # Plugins and their options.
    ("rllm={}", "empty-choice", ["`rllm`"]),
    ("rllm.rollout={}", "empty-choice", ["`rllm.rollout`"]),
    ("rllm.backend=", "unknown-plugin", ["`rllm.backend`"]),
    ("rllm.backend=vrel", "unknown-plugin", ["`rllm.backend`", "'vrel'", "'verl'"]),
    ("rllm.env.name=gess", "unknown-plugin", ["`rllm.env.name`", "'gess'", "'guess'"]),
    ("rllm.algorithm.adv_estimator=grop", "unknown-plugin", ["rllm.algorithm.adv_estimator", "'grop'", "'grpo'"]),
    ("rllm.algorithm.loss_fn=ppo2", "unknown-plugin", ["rllm.algorithm.loss_fn", "'ppo'"]),
    ("rllm.transform.grouping=task_rol", "unknown-plugin", ["'task_role' or 'task'"]),
    ("rllm.trainer.logger=[consol]", "unknown-plugin", ["rllm.trainer.logger", "'console'"]),
    ("rllm.algorithm.adv_estimator={name:grpo,beta:1}", "unknown-option", ["adv_estimator.beta is 1", "'grpo'"]),
    ("rllm.env.env_args.promt=hi", "unknown-option", ["rllm.env.env_args.promt", "'prompt'"]),
    ("rllm.env.env_args.largest=0", "wrong-value", ["rllm.env.env_args.largest is 0"]),
    ("rllm.workflow.workflow_args.gama=1", "unknown-option", ["'gamma'"]),
    ("rllm.agent.agent_args.prompt=1", "unknown-option", ["agent 'math_agent'"]),
    ("data.train_dataset=jsonl", "wrong-value", ["data.train_dataset.path is not set"]),
    # Values that do not fit together.
    (f"{CORRECTION}={{tis_mode:token,tis_floor:2}}", "empty-ratio-range", ["below 1"]),
    ("rllm.pipeline.remove=[advantages]", "stage-input-missing", ["'update'", "'batch.advantages'"]),
    ("rllm.pipeline.insert=[{stage:log}]", "bad-stage-edit", ["{stage: NAME, after: NAME}"]),
    ("rllm.workflow.workflow_args.env_cls=guess", "conflicting-keys", ["env_cls", "rllm.env.name"]),
    (
        f"{ROLES}.estimator_map={{a:{{name:grpo,loss_fn:ppo}}}} {ROLES}.loss_map.a=reinforce",
        "conflicting-keys",
        ["loss_map.a"],
    ),
    ("rllm.sdk.proxy={host:0.0.0.0,admin_token:my-shared-secret}", "wrong-value", ["public default"]),
]
TABLE = [
    *((words, "unknown-key", values) for words, values in UNKNOWN_KEYS),
    *((word, "wrong-value", [f"`{key}` is {value} (from command", end]) for word, key, value, end in WRONG_VALUES),
    *((words, "unused-key", values) for words, values in UNUSED),
    *OTHERS,
]


@pytest.fixture(scope="module")
def installed() -> Registry:
    return Registry.load()


@pytest.mark.parametrize(("words", "code", "values"), TABLE)
def test_bad_configuration_is_an_error(words: str, code: str, values: list[str], installed: Registry) -> None:
    layers = layers_from_overrides(["rllm.env.name=sum", *words.split()])
    with expect_error(ConfigError, code, *values) as caught:
        make_plan(compose(installed, layers), installed)
    assert caught.value.exit_code == 2


def test_registry_without_a_tracker_reports_the_package() -> None:
    registry = Registry.load(allow=["rllm-local", "rllm"])
    layers = layers_from_overrides(["rllm.env.name=sum", "rllm.record=tokens"])
    with expect_error(ConfigError, "unused-key", "`rllm.record`", "pip install rllm-record"):
        make_plan(compose(registry, layers), registry)


def test_several_problems_are_reported_together_one_per_line(installed: Registry) -> None:
    words = ["rllm.rollout.n=0", "rllm.trainer.zzz=1", "modle.name=x", "training.learning_rate=-1"]
    with expect_error(ConfigError, "unknown-key") as caught:
        compose(installed, layers_from_overrides(words))
    heading, *lines = caught.value.message.splitlines()
    assert heading.startswith("4 problems")
    assert [line.split("`")[1] for line in lines] == ["zzz", "rllm.rollout.n", "modle", "training.learning_rate"]
