"""Every key of the core is read in some run, or a value of it is refused with the reason. No key is ignored.

A new key without a proof here fails. `test_every_key_refused.py` tests the messages of refusals.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from rllm.config.choices import registry_for
from rllm.config.layers import layer_from_keys
from rllm.planning.plan import RunPlan
from rllm.planning.unused_keys import Key, acting_plugins, core_keys
from rllm_core.errors import ConfigError
from rllm_core.pipeline.graph import BUILT_IN
from rllm_core.plugins.registry import Registry
from rllm_core.schema.run_config import RunConfig
from rllm_core.schema.section import Rejected

from .conftest import plan_of

AGENT = """
from openai import OpenAI

def solve(task):
    messages = [{"role": "user", "content": "?"}]
    OpenAI().chat.completions.create(model="any", messages=messages, extra_body={"metadata": {"role": "player"}})
    return 1.0
"""
KEYS = {key.dotted: key for key in core_keys(RunConfig())}
CHECKS = (
    "rllm.config.",
    "rllm_core.schema.",
    "rllm.planning.unused_keys.",
    "rllm.planning.plugin_checks.",
    "rllm.planning.idle_checks.",
)
"""Functions that read a value only to warn or refuse. They do not use it."""


def _is_refused(key: Key, installed: Registry) -> bool:
    """Return True if no run can use any other value than the default."""
    choices = get_args(key.field.annotation) if get_origin(key.field.annotation) is Literal else ()
    rejected = key.mark(Rejected)
    if rejected and (rejected.value is None or {*choices} == {key.default, rejected.value}):
        return True
    return not key.is_read_by_core and not acting_plugins(installed, key)


@pytest.fixture(scope="module")
def refused() -> list[str]:
    """Return the keys that accept no other value than the default."""
    installed = Registry.load()
    return [name for name, key in KEYS.items() if _is_refused(key, installed)]


# Six runs, in which every other key differs from its default.
GENERATED: dict[str, Any] = {
    "rllm.backend": "rllm-local/local",
    "rllm.agent.name": "rllm-core/math_agent",
    "rllm.agent.max_steps": 3,
    "rllm.agent.trajectory_timeout": 50.0,
    "rllm.agent.overlong_filter": True,
    "rllm.agent.agent_args": {"system_prompt": "guess"},
    "rllm.env.name": "guess",
    "rllm.env.env_args": {"prompt": "number"},
    "rllm.workflow.name": "multi_turn_workflow",
    "rllm.workflow.workflow_args": {"timeout": 40.0},
    "rllm.workflow.n_parallel_tasks": 7,
    "rllm.workflow.retry_limit": 2,
    "rllm.workflow.raise_on_error": False,
    "rllm.rollout.n": 2,
    "rllm.rollout.n_val": 2,
    "rllm.trainer.total_batches": 1,
    "rllm.trainer.logger": ["tensorboard"],
    "rllm.trainer.observers": ["watcher"],
    "rllm.trainer.project_name": "project",
    "rllm.trainer.experiment_name": "experiment",
    "rllm.trainer.output_dir": "elsewhere",
    "rllm.trainer.test_freq": 1,
    "rllm.trainer.save_freq": 1,
    "rllm.trainer.keep_checkpoints": 2,
    "rllm.trainer.on_changed_source": "warn",
    "rllm.trainer.val_before_train": False,
    "rllm.trainer.seed": 3,
    "rllm.trainer.max_hours": 9.0,
    "rllm.trainer.max_tokens": 10**9,
    "rllm.trainer.max_cost": 9.0,
    **{f"rllm.trainer.prices.{name}": 0.5 for name in ("sampled_per_million", "trained_per_million", "per_hour")},
    "rllm.reward": ["even"],
    "rllm.sampler": "drop_solved",
    "rllm.renderer": "rllm-core/template",
    "rllm.disable_thinking": True,
    "rllm.accumulate_reasoning": True,
    "rllm.mask_truncated_samples": True,
    **{name: not key.default for name, key in KEYS.items() if name.startswith("rllm.compact_filtering.")},
    "rllm.transform.grouping": "rllm-core/task_role",
    "rllm.pipeline.stages": ["generate", *BUILT_IN],
    "rllm.pipeline.insert": [{"stage": "impute_names", "after": "generate"}],
    "rllm.pipeline.remove": ["generate"],
    "rllm.pipeline.replace": {"group": "rllm-core/group"},
    "rllm.pipeline.move": [{"stage": "compact_filter", "before": "greedy_baseline"}],
    "rllm.record": "tokens",
    "rllm.episode_logging.log_episodes": True,
    "rllm.episode_logging.episode_log_dir": "episodes",
    "data.train_dataset": {"name": "jsonl", "path": "tasks.jsonl"},
    "data.val_dataset": {"name": "jsonl", "path": "tasks.jsonl"},
    "data.train_batch_size": 1,
    "data.val_batch_size": 3,
    "data.max_prompt_length": 99,
    "data.max_response_length": 2,
    **{f"sampling.{phase}.temperature": 0.9 for phase in ("train", "val")},
    **{f"sampling.{phase}.top_p": 0.8 for phase in ("train", "val")},
    **{f"sampling.{phase}.top_k": 7 for phase in ("train", "val")},
}
LEARNT: dict[str, Any] = {
    "rllm.env.name": "lucky",
    "rllm.trainer.total_batches": 1,
    "rllm.trainer.output_dir": "learned",
    "rllm.rejection_sample.enable": True,
    "rllm.rejection_sample.mode": "rllm-core/group",
    "rllm.rejection_sample.multiplier": 2,
    "rllm.rejection_sample.min_trajs_per_group": 1,
    "rllm.teacher": {"name": "policy", "prompt": "guess"},
    "rllm.pipeline.insert": [{"stage": "distill", "after": "advantages"}],
    "rllm.pipeline.options": {"distill": {"weight": 0.5}},
    "rllm.objective": "rl",
    "rllm.algorithm.adv_estimator": "rllm-core/grpo",
    "rllm.algorithm.estimator_map": {"agent": "grpo"},
    "rllm.algorithm.norm_adv_by_std_in_grpo": False,
    "rllm.algorithm.use_precomputed_advantage": True,
    "rllm.algorithm.on_precomputed_mismatch": "zero",
    "rllm.algorithm.loss_fn": "ppo",
    "rllm.algorithm.loss_map": {"agent": "ppo"},
    "rllm.algorithm.loss_agg_mode": "token-sum",
    "rllm.algorithm.eps_clip": 0.1,
    "rllm.algorithm.eps_clip_high": 0.3,
    "rllm.algorithm.lr_schedule": "linear",
    "rllm.algorithm.warmup_steps_ratio": 0.5,
    "rllm.algorithm.entropy.coeff": 0.1,
    "rllm.algorithm.entropy.final_coeff": 0.2,
    "rllm.algorithm.entropy.decay_steps": 9,
    "rllm.algorithm.kl_beta": 0.1,
    "rllm.algorithm.kl_estimator": "k2",
    "rllm.algorithm.rollout_correction.bypass_mode": False,
    "rllm.algorithm.rollout_correction.tis_mode": "token",
    "rllm.algorithm.rollout_correction.tis_cap": 3.0,
    "rllm.algorithm.rollout_correction.tis_beyond_cap": "mask",
    "rllm.algorithm.rollout_correction.tis_floor": 0.5,
    "rllm.algorithm.rollout_correction.tis_batch_normalize": True,
    "rllm.algorithm.rollout_correction.reject": {"token_k1": 1.5},
    "rllm.algorithm.on_missing_reward": "zero",
    "rllm.stepwise_advantage.enable": True,
    "rllm.stepwise_advantage.normalize_by_steps": True,
}
LUCKY = {"rllm.env.name": "lucky", "rllm.trainer.total_batches": 1}
COUNTED_IN_EPOCHS = {
    "rllm.env.name": "lucky",
    "rllm.trainer.output_dir": "epochs",
    "rllm.trainer.total_epochs": 1,
    "rllm.trainer.val_only": True,
}
PARTLY_SOLVED = LUCKY | {
    "rllm.rollout.engine": "parrot",
    "rllm.trainer.output_dir": "partly",
    "rllm.rejection_sample.enable": True,
    "rllm.rejection_sample.mode": "episode",
    "rllm.rejection_sample.min_partial_solve_tasks": 2,
}
FILLED = LUCKY | {
    "rllm.trainer.output_dir": "filled",
    "rllm.rejection_sample.enable": True,
    "rllm.rejection_sample.mode": "dynamic",
    "rllm.rollout.n": 1,
    "data.train_batch_size": 2,
    "rllm.rejection_sample.max_gen_batches": 2,
}


def free_port() -> int:
    """Return a port on which no program listens at the moment."""
    with socket.create_server(("127.0.0.2", 0)) as server:
        return int(server.getsockname()[1])


WITH_AN_AGENT = LUCKY | {
    "rllm.trainer.output_dir": "agent",
    "rllm.workflow.name": "agent",
    "rllm.workflow.workflow_args": {"agent": "agent.py:solve"},
    "rllm.sdk.store.path": "calls.db",
    "rllm.sdk.processing.groupby_key": "branch",
    "rllm.sdk.processing.traj_name_key": "role",
    "rllm.sdk.proxy.host": "127.0.0.2",
    "rllm.sdk.proxy.port": free_port(),
}
RUNS = (GENERATED, LEARNT, COUNTED_IN_EPOCHS, PARTLY_SOLVED, FILLED, WITH_AN_AGENT)
CLIENT_LOSSES = (
    # They have an effect before there is a plan.
    *("rllm.plugins.allow", "rllm.plugins.import_modules", "rllm.composed", "rllm.profile"),
    "rllm.algorithm.rollout_correction.preset",
    # A run that attaches to a gateway: `test_agents_of_others.py`.
    *("rllm.sdk.proxy.mode", "rllm.sdk.proxy.admin_token"),
    # The treatment of unused keys: `rllm_core/tests/pipeline/test_plan.py`.
    "rllm.unused_keys",
    # Asynchronous training: `tests/asynchronous`.
    *(f"rllm.async_training.{name}" for name in ("enable", "staleness_threshold", "partial_rollout")),
    # Runs whose agent is a program in a sandbox: `test_task_directories.py`.
    "rllm.sandbox",
)


@dataclass
class Traced:
    """A run, and the readers of its values."""

    plan: RunPlan
    reads: list[tuple[BaseModel, str, str]] = field(default_factory=list)
    """The section or options, the value's name, and the function that read it."""

    def readers(self, section: Any, name: str) -> set[str]:
        found = {who for owner, read, who in self.reads if owner is section and read == name}
        return {who for who in found if not who.startswith(CHECKS)}


@pytest.fixture(scope="module")
def traced(
    tmp_path_factory: pytest.TempPathFactory, worlds: Registry, thinking_model: Path, carry_out: Callable[..., Any]
) -> Callable[[int], Traced]:
    """Make one of the runs."""
    directory = tmp_path_factory.mktemp("runs")
    (directory / "agent.py").write_text(AGENT)
    (directory / "tasks.jsonl").write_text('{"number": 3}\n{"number": 4}\n')

    def make(index: int) -> Traced:
        layer = layer_from_keys({"model.name": str(thinking_model), "data.max_response_length": 2}, "before")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(directory)
            reads: list[tuple[BaseModel, str, str]] = []
            _record_reads(patch, reads)
            plan = plan_of(RUNS[index], worlds, [layer])
            carry_out(plan)
        return Traced(plan, reads)

    return make


def _record_reads(patch: pytest.MonkeyPatch, reads: list[tuple[BaseModel, str, str]]) -> None:
    """Record reads of attributes of all sections and options, and dumps of those that contain only values."""
    dump = BaseModel.model_dump

    def caller() -> str:
        frame = sys._getframe(2)
        return f"{frame.f_globals['__name__']}.{frame.f_code.co_name}"

    def look_up(self: BaseModel, name: str) -> Any:
        if name in type(self).model_fields:
            reads.append((self, name, caller()))
        return object.__getattribute__(self, name)

    def model_dump(self: BaseModel, **options: Any) -> dict[str, Any]:
        values, who = self.__dict__, caller()
        if not any(isinstance(value, BaseModel) for value in values.values()):
            reads.extend((self, name, who) for name in values)
        return dump(self, **options)

    patch.setattr(BaseModel, "__getattribute__", look_up)
    patch.setattr(BaseModel, "model_dump", model_dump)


def _places(key: Key, plan: RunPlan) -> list[Any]:
    """Return the sections and options that pass the value of a key to its readers."""
    if key.options_of and not key.is_read_by_core:
        chosen = [*plan.estimators, *plan.losses, plan.rejection, *plan.trackers, *plan.observers]
        return [entry.params for entry in chosen if key.path[-1] in type(entry.params).model_fields]
    for shared in plan.backend.plugin.shared_keys:
        if shared.rllm == key.dotted:
            return [_section(plan.composed.backend_config, shared.native)]
    return [_section(plan.config, key.dotted), _section(plan.composed.config, key.dotted)]


def _section(config: Any, dotted: str) -> Any:
    for part in dotted.split(".")[:-1]:
        config = config.__dict__[part]
    return config


def test_every_key_is_read_or_rejected(refused: list[str]) -> None:
    given = {name for settings in RUNS for name in settings}
    read = [name for name in KEYS if name not in (*refused, *CLIENT_LOSSES)]
    assert [name for name in read if name not in given] == [], "give these keys a value in one of RUNS"
    assert given <= set(read), "refused, or no key"


@pytest.mark.parametrize("index", [*range(5), pytest.param(5, marks=pytest.mark.long)])
def test_run_reads_its_values_and_no_refused_key(
    index: int, traced: Callable[[int], Traced], refused: list[str]
) -> None:
    run = traced(index)
    for name, value in RUNS[index].items():
        last = name.rpartition(".")[2]
        assert value != KEYS[name].default
        places = _places(KEYS[name], run.plan)
        assert places, name
        assert [place.__dict__[last] for place in places] == [value] * len(places), f"{name} arrives changed"
        assert any(run.readers(place, last) for place in places), f"no code reads {name}"
    for name in refused:
        assert not run.readers(_section(run.plan.config, name), name.rpartition(".")[2]), name


def test_plugins_are_allowed_before_a_plan_is_made() -> None:
    layer = layer_from_keys({"rllm.plugins.allow": ["rllm-view"]}, "my.yaml")
    registry = registry_for([layer])
    with pytest.raises(ConfigError, match="rllm-local is blocked"):
        plan_of({"rllm.env.name": "sum"}, registry, [layer])
